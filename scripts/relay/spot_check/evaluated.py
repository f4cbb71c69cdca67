"""The run's last evaluation, made again by one plain process from the state that the run saved after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from relay.equivalence.plain import Plain
from relay.process import machine
from relay.spec.setting import TF32
from relay.spot_check import statistics
from relay.spot_check.figures import Figure
from relay.spot_check.plain import Division, Loop, Whole
from relay.spot_check.statistics import Statistics
from relay.task.data import Mapped, Split
from relay.task.network import Network

# How far the test loss may be from the plain process's, by precision; relative where it is greater than 1. It is a
# mean over many samples: sums in another order change it by 1e-7 or less, in bf16 by 1e-4.
LOSS_LIMITS = {"fp64": 1e-9, "fp32": 1e-6, **dict.fromkeys(TF32, 5e-4), "bf16": 2e-3, "fp16": 5e-4}
# How many of the samples may be classified otherwise, by precision: rounding decides where two classes are as likely.
# Two samples may be in any case.
ACCURACY_LIMITS = {"fp64": 1e-4, "fp32": 2e-3, **dict.fromkeys(TF32, 1e-2), "bf16": 2e-2, "fp16": 1e-2}


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation finds: the mean loss on the test set, and the accuracy in 0..1 (None for regression)."""

    loss: float
    accuracy: float | None


class Evaluation:
    """Evaluates one state of a run, in the batches and slices in which the run evaluates."""

    def __init__(self, loop: Loop, dataset: Path, division: Division) -> None:
        self.loop, self.division = loop, division
        split = Split(dataset, "test", loop.run.task)
        self.samples, self.count = Mapped(split, loop.ranks.device, loop.task.dtype), len(split)

    def figures(self, recorded: Evaluated, whole: Whole, state: Path) -> list[Figure]:
        """How far an evaluation that the run recorded is from that of a model, which was read from this state."""
        found = [self._compared(recorded, each) for each in self._of(whole, state)]
        return min(found, key=lambda figures: max(figure.figure / figure.limit for figure in figures))

    def _compared(self, recorded: Evaluated, plain: Evaluated) -> list[Figure]:
        precision = self.loop.run.computation.precision
        loss = abs(recorded.loss - plain.loss) / max(1.0, abs(plain.loss))
        figures = [Figure("test loss", loss, LOSS_LIMITS[precision], 0.0)]
        if recorded.accuracy is not None and plain.accuracy is not None:
            limit = max(ACCURACY_LIMITS[precision], 2 / self.count)
            figures.append(Figure("test accuracy", abs(recorded.accuracy - plain.accuracy), limit, 0.0))
        return figures

    def _of(self, whole: Whole, state: Path) -> Iterator[Evaluated]:
        """With each replica's own statistics and, where they are others, with the first one's for all slices."""
        machine.set_precision(self.loop.task.precision)
        world_size, group = self.loop.run.shape.world_size, self.loop.ranks.saving
        own_of = statistics.saved(state, whole.model, self.division.ranks_of, world_size, group)
        yield self._measured(whole, own_of)
        if any(statistics.unlike(own_of[0], own) for own in own_of):
            yield self._measured(whole, own_of[:1] * len(own_of))

    @torch.no_grad()
    def _measured(self, whole: Whole, own_of: list[Statistics]) -> Evaluated:
        """The whole test set. The last batch is filled up with repeated samples, which are not counted."""
        task, model, loss, correct = self.loop.task, cast(Network, whole.model), 0.0, 0.0
        plain = Plain(task, model, whole.optimizer, torch.amp.GradScaler(enabled=False), own_of)
        model.eval()
        for replica, positions in self._slices():
            plain.use_statistics(replica)
            inputs, targets = self.samples.fetch(positions % self.count)
            outputs, real = model(inputs), int((positions < self.count).sum())
            if real:
                loss += float(task.loss(outputs[:real], targets[:real])) * real
                correct += task.correct(outputs[:real], targets[:real]) if task.classes is not None else 0.0
        return Evaluated(loss / self.count, correct / self.count if task.classes is not None else None)

    def _slices(self) -> Iterator[tuple[int, torch.Tensor]]:
        batch, replicas = self.loop.run.batch.global_batch_size, self.division.replicas
        for start in range(0, self.count, batch):
            yield from enumerate(torch.arange(start, start + batch).chunk(replicas))


def last_of(lines: Iterable[dict[str, Any]], step: int) -> Evaluated | None:
    """The evaluation after a step that was recorded last."""
    found = [each for line in lines for each in line.get("evaluations", []) if each["step"] == step]
    return Evaluated(found[-1]["test_loss"], found[-1]["test_accuracy"]) if found else None
