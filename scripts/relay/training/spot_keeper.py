"""The trainer's side of spot checks: it keeps the run's state around a few of its steps, and what it saw of them."""

import os
import shutil
import time
from dataclasses import dataclass
from typing import Any

import torch

from relay.chain.saving import DONE, Saver
from relay.chain.sealed import Folder, publish
from relay.process import system
from relay.process.ranks import Ranks
from relay.run_folder.spots import Seen, Spots, draw, go_on, states_folder
from relay.spec.run import Training
from relay.task import batches
from relay.task.bound import BoundTask
from relay.training.checkpoint import Trained

# The first two steps of a process send more than the later ones: shapes, buckets, connections.
SETTLING_STEPS = 2


@dataclass
class NotedTask(BoundTask):
    """The task of a run, which notes what reaches its loss while a step is watched."""

    def loss(self, outputs: Any, batch: batches.Batch) -> torch.Tensor:
        """The task's loss."""
        if BoundTask.parts is not None:
            BoundTask.parts.append(batches.count(batch))
        return super().loss(outputs, batch)


class Keeper:
    """Keeps a run's states around its spots. All methods are collective, and return at once away from the spots.

    The trainer calls `begin` after it has resumed, `before` and `after` each step, `save` where a state is `due`, and
    `end` after the job's own last checkpoint.
    """

    def __init__(self, run: Training, ranks: Ranks, trained: Trained, rolling: Saver) -> None:
        self.checks, self.total = run.spot_checks, run.length.total_steps
        self.work, self.ranks, self.strategy, self.rolling = trained.work, ranks, trained.strategy, rolling
        self.states = trained.saver(Folder(states_folder(trained.work), rolling=False))  # which all stay
        self.spots = Spots([])
        self._last, self._steps = 0, set[int]()
        self._early: list[int] = []  # steps at the beginning, and what this rank has sent in them
        self._early_sent: list[int | None] = []
        self._before: dict[str, int] = {}
        self._watched: dict[int, tuple[list[int], int | None]] = {}

    def begin(self, step: int, last: int) -> None:
        """Read what was drawn for the chain, or draw it, when a job goes on from `step` to `last`."""
        if not self.checks.any:
            return
        if self.ranks.rank == 0:
            drawn = Spots.read(self.work)
            if drawn is None:
                drawn = draw(self.checks, step, last, self.total)
            self.spots = go_on(drawn, self.checks, self.work, step, self.total)
            self.spots.write(self.work)
        self.spots = self.ranks.gather(self.spots)[0]
        if self.spots.early_bytes is None and self.ranks.world_size > 1:
            self._early = [step + SETTLING_STEPS + number for number in range(1, self.checks.steps + 1)]
        self._last, self._steps = last, self.spots.steps | set(self._early)
        if self.due(step):
            self.save(step)
        self.before(step + 1)

    def before(self, step: int) -> None:
        """Begin to watch a step: the batches that reach the loss, and the bytes that are sent."""
        if not self.checks.any or step not in self._steps:
            return
        self.ranks.barrier()  # a rank that is still sending belongs to the step before
        # A checkpoint that is written meanwhile sends, too.
        BoundTask.parts, self._before = [], system.sent_by_socket() if self.rolling.progress == DONE else {}

    def after(self, step: int) -> None:
        """Note what was seen of the step that was watched."""
        parts, BoundTask.parts = BoundTask.parts, None
        if parts is None:
            return
        self.ranks.barrier()
        # Several processes always have sockets, the control group's: where none is seen, the kernel cannot tell.
        bytes_sent = system.sent_since(self._before) if self._before else None
        self._watched[step] = parts, bytes_sent
        if step in self._early:
            self._early_sent.append(bytes_sent)
            if step == self._early[-1]:
                self._keep_early()

    def _keep_early(self) -> None:
        """Note what each rank sends in a step at the beginning of the chain."""
        mine = [count for count in self._early_sent if count is not None]
        by_rank = self.ranks.gather(round(sum(mine) / len(mine)) if mine else None)
        counts = [count for count in by_rank if count is not None]
        self.spots.early_bytes = counts if len(counts) == len(by_rank) else None
        if self.ranks.rank == 0:
            self.spots.write(self.work)

    def due(self, step: int) -> bool:
        """Whether the state after this step is to be kept; at the job's end that is its own last checkpoint."""
        return self.checks.any and step in self.spots.states and step != self._last

    def save(self, step: int) -> None:
        """Save the state after this step, and wait until it is complete."""
        began = time.monotonic()
        self.rolling.finish()  # two saves at once would use one process group
        self.states.save_last(step)  # the spot needs it
        # What a save takes has to be known when the job's end is near.
        longest = max(self.rolling.longest_save_seconds, self.states.longest_save_seconds)
        self.rolling.longest_save_seconds = longest
        self._write(time.monotonic() - began)

    def end(self, step: int) -> None:
        """Keep the job's last checkpoint, where it is the state after a step that is needed."""
        if not self.checks.any or step != self._last or step not in self.spots.states:
            return
        began = time.monotonic()
        if self.ranks.rank == 0:
            partial = self.states.partial(step)
            place = self.rolling.folder.place(step)
            shutil.copytree(place, partial, copy_function=_linked, dirs_exist_ok=True)
            publish(partial, self.states.folder.place(step))
        self._write(time.monotonic() - began)

    def _write(self, seconds: float) -> None:
        """Add to the file what all ranks have seen since the last time."""
        needed = self.spots.steps
        mine = {step: seen for step, seen in self._watched.items() if step in needed}
        self._watched.clear()
        replica = self.strategy.replica
        layers = [name for name, _ in self.strategy.model.named_children()]
        by_rank = self.ranks.gather(((replica.index, replica.reports), layers, mine))
        if self.ranks.rank != 0:
            return
        self.spots.replicas, self.spots.layers = [each for each, _, _ in by_rank], [names for _, names, _ in by_rank]
        for step in mine:
            sizes, counts = zip(*(seen[step] for _, _, seen in by_rank), strict=True)
            self.spots.seen[step] = Seen(list(sizes), None if None in counts else list(counts))
        self.spots.seconds = round(self.spots.seconds + seconds, 4)
        self.spots.write(self.work)


def _linked(source: str, place: str) -> None:
    """The same file under another name, where the filesystem can; else a copy."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copy2(source, place)
