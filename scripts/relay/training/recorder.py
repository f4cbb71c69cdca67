"""Losses and times of an attempt, gathered in memory, written in bulk (`run_folder.attempts` says what lines mean)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from relay.base.errors import Diverged
from relay.process import system
from relay.process.ranks import Ranks
from relay.run_folder.attempts import not_finite, record, record_begin
from relay.strategies.base import Replica
from relay.training.timing import Block


class Recorder:
    """Buffers one attempt's losses and times; rank 0 writes them in bulk."""

    def __init__(
        self, work: Path, attempt: int, ranks: Ranks, replica: Replica, why: Callable[[str, int], str]
    ) -> None:
        """`why` explains a loss that is not finite, as `run_folder.attempts.not_finite` asks it."""
        self.why = why
        self.work, self.attempt, self.ranks, self.replica = work, attempt, ranks, replica
        self._step = 0  # the last one whose loss is written
        self._losses: list[torch.Tensor] = []
        self._evaluations: list[dict[str, Any]] = []

    def begin(self, step: int, facts: dict[str, Any]) -> None:
        """Note where the attempt starts and what every rank runs on. Collective."""
        self._step, ranks = step, self.ranks.gather(facts)
        if self.ranks.rank == 0:
            record_begin(self.work, self.attempt, step, ranks)

    def loss(self, loss: torch.Tensor) -> None:
        """Keep a step's loss where it is: reading it would wait for the device. Raises TypeError for what is none."""
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise TypeError(
                f"the strategy's train_step returned {_kind(loss)}; allowed: the mean loss, a scalar tensor"
            )
        if self.replica.reports:
            self._losses.append(loss)

    def evaluation(self, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Keep what the evaluation after a step found."""
        accuracy = metrics.get("accuracy")
        entry = {"step": step, "test_loss": loss, "test_accuracy": accuracy, "test_metrics": dict(metrics)}
        self._evaluations.append(entry)

    def flush(self, blocks: list[Block], paused: dict[str, float]) -> None:
        """Write what has gathered; a step's loss is the mean over the replicas. Collective.

        `paused` are the seconds that were not training, by what was done.
        Raises Diverged, on all ranks, where a loss among it is not finite.
        """
        mine = torch.stack(self._losses).double().tolist() if self._losses else []
        reported = [losses for losses in self.ranks.gather(mine) if losses]
        means = [sum(step) / len(step) for step in zip(*reported, strict=True)]
        rows = [block.row() for block in blocks]
        self._record(after=self._step, blocks=rows, losses=means, evaluations=self._evaluations, paused=paused)
        losses = list(enumerate(means, self._step + 1))
        wrong = not_finite(losses, self._evaluations, self.why)
        self._step, self._losses, self._evaluations = self._step + len(means), [], []
        if wrong:
            raise Diverged(wrong)

    def end(
        self,
        step: int,
        stopped: str | None,
        peak_memory_bytes: int,
        counted: dict[str, int],
        paused: dict[str, float],
        cuda_graph: Mapping[str, Any] | None = None,
    ) -> None:
        """Note how far the attempt came, and why it stopped if it was cut short. Collective.

        `paused` is as in `flush`. `cuda_graph` is `Captured.record`.
        `counted` is what this rank's strategy has counted; the ranks' counts are added up.
        """
        by_rank = self.ranks.gather((peak_memory_bytes, system.peak_main_memory_bytes(), counted))
        totals = {name: sum(counts.get(name, 0) for *_, counts in by_rank) for *_, counts in by_rank for name in counts}
        peaks = {"peak_memory_bytes": max(device for device, _, _ in by_rank)}
        peaks |= {"peak_main_memory_bytes": max(main for _, main, _ in by_rank)}
        self._record(end=step, stopped=stopped, **peaks, counted=totals, paused=paused, cuda_graph=cuda_graph)

    def _record(self, **line: Any) -> None:
        if self.ranks.rank == 0:
            record(self.work, self.attempt, **line)


def _kind(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
