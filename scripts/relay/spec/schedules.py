"""The schedules of pipelines, as plain data for the planner and for the strategies that use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One of torch.distributed.pipelining's schedules, `name` being torch's for it.

    `stages`: of each process. `v_shaped`: the first process has the first stage and the last one, not every n-th.
    `parted`: gradients of inputs and of weights are computed apart, the latter in the gaps. `filled`: there are at
    least as many micro-batches as stages. `rounds`: as many micro-batches in each round over the processes.
    """

    name: str
    stages: int = 1
    v_shaped: bool = False
    parted: bool = False
    filled: bool = False
    rounds: bool = False

    def problems(self, processes: int, micro_batches: int, compiled: bool, channels_last: bool) -> Iterator[str]:
        """Why torch could not do it so; what the schedule is called here stands before it."""
        stages = processes * self.stages
        if self.filled and micro_batches < stages:
            yield f"needs at least {stages} micro_batches for its {stages} stages, has {micro_batches}"
        if self.rounds and micro_batches % max(1, micro_batches // processes):
            rounds = micro_batches // processes
            yield f"works in {rounds} equal rounds, has {micro_batches} micro_batches; a multiple of {processes} fits"
        # torch.compile makes both kinds of gradients in one pass; and torch 2.13 on CPUs crashes when GroupNorm is
        # asked for those of its weights alone, in channels_last.
        if self.parted and (compiled or channels_last):
            yield f"computes gradients in parts, which {'compile' if compiled else 'channels_last'} does not allow"


SCHEDULES = {
    "gpipe": Schedule(name="GPipe"),
    "1f1b": Schedule(name="1F1B", filled=True),
    "looped_bfs": Schedule(name="LoopedBFS", stages=2),
    "interleaved_1f1b": Schedule(name="Interleaved1F1B", stages=2, rounds=True),
    "interleaved_zero_bubble": Schedule(name="InterleavedZeroBubble", stages=2, parted=True, rounds=True),
    "zbv_zero_bubble": Schedule(name="ZBVZeroBubble", stages=2, v_shaped=True, parted=True),
    "dualpipe_v": Schedule(name="DualPipeV", stages=2, v_shaped=True, parted=True, filled=True),
}
