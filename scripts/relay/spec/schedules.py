"""The schedules of pipeline strategies, as plain data that the planner can read without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule of torch.distributed.pipelining; `name` is torch's name for it.

    `stages` is the number of pipeline stages in each process.
    `v_shaped` places the first and the last stage on the first process; otherwise a process has every n-th stage.
    `parted` schedules compute the gradients of inputs and of weights separately, the latter while a process would wait.
    `filled` schedules need at least as many micro-batches as pipeline stages.
    `rounds` schedules divide the micro-batches into equal rounds over the processes.
    """

    name: str
    stages: int = 1
    v_shaped: bool = False
    parted: bool = False
    filled: bool = False
    rounds: bool = False

    def problems(self, processes: int, micro_batches: int, compiled: bool, channels_last: bool) -> Iterator[str]:
        """The reasons why torch cannot run this schedule, each a sentence without its subject, the schedule's name."""
        stages = processes * self.stages
        if self.filled and micro_batches < stages:
            yield f"needs at least {stages} micro_batches for its {stages} stages, has {micro_batches}"
        if self.rounds and micro_batches % max(1, micro_batches // processes):
            rounds = micro_batches // processes
            yield f"works in {rounds} equal rounds, has {micro_batches} micro_batches; a multiple of {processes} fits"
        # torch.compile computes both kinds of gradients in one pass. In channels_last, torch 2.13 crashes on CPUs when
        # the gradients of GroupNorm's weights are computed alone.
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
