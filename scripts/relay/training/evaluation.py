"""Loss and metrics on the test set, every sample counted once."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from relay.process.generators import apart
from relay.process.ranks import Ranks
from relay.strategies.base import Replica
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.data import Chosen, Feeder


class Evaluable(Protocol):
    """What an evaluation needs of a strategy."""

    task: BoundTask
    replica: Replica
    ranks: Ranks

    def predict(self, batch: Batch) -> Any:
        """Outputs of this replica's slice in evaluation mode."""


class Evaluation:
    """Measures a strategy's model on a whole split, in batches of the size that it trains with."""

    def __init__(self, feeder: Feeder, strategy: Evaluable, global_batch_size: int) -> None:
        self.feeder, self.strategy, self.batch = feeder, strategy, global_batch_size
        self.task, self.count = strategy.task, len(feeder.split)

    def measure(self) -> tuple[float, dict[str, float]]:
        """The mean loss, and the task's metrics by name. Collective.

        Some strategies need equal shapes: the last batch is filled up with copies of the first sample, which do not
        count. Where the model returns its own loss, theirs is a part of it. It is measured alone, and taken off.
        """
        return averaged(self.task, self.strategy.ranks.gather(self.totals()))

    def totals(self) -> tuple[dict[str, float], int]:
        """Loss and metrics of this replica's slices, each summed over samples, and how many samples these are.

        A model may draw: each evaluation draws the same numbers, and the training goes on with its own.
        """
        with apart(self.task.seed + self.strategy.replica.index, self.strategy.ranks.devices):
            return self._totals()

    def _totals(self) -> tuple[dict[str, float], int]:
        replica = self.strategy.replica
        totals, counted, filled = Counter[str](), 0, 0
        for positions, batch in zip(self._slices(), self.feeder.batches(self._read()), strict=True):
            outputs = self.strategy.predict(batch)
            real, whole = int((positions < self.count).sum()), len(positions)  # the copies come last
            if replica.reports and real:
                parts = batches.leaves(outputs) if real < whole else []  # none of what torch cannot open
                counts = self.task.along.get(batches.OUTPUTS, 0) is not None  # a dimension of the outputs
                if counts and parts and all(part.dim() for part in parts):
                    outputs = batches.first(outputs, real, whole, self.task.along)
                    batch, whole = batches.taken(batch, slice(real)), real
                totals.update({name: value * whole for name, value in self._measured(outputs, batch).items()})
                filled += whole - real
                counted += real
        if any(self.strategy.ranks.gather(filled)):
            totals.subtract({name: filled * value for name, value in self._of_the_first().items()})
        return dict(totals), counted

    def _slices(self) -> Iterator[torch.Tensor]:
        """This replica's positions in each batch; those beyond the split's end are to be copies of the first sample."""
        replica = self.strategy.replica
        for start in range(0, self.count, self.batch):
            yield torch.arange(start, start + self.batch).chunk(replica.count)[replica.index]

    def _read(self) -> Iterator[Chosen]:
        return (Chosen(positions.where(positions < self.count, 0)) for positions in self._slices())

    def _of_the_first(self) -> dict[str, float]:
        """Loss and metrics of the first sample. Collective."""
        positions = torch.zeros_like(next(self._slices()))
        (batch,) = self.feeder.batches(iter([Chosen(positions)]))
        outputs = self.strategy.predict(batch)
        mine = self._measured(outputs, batch) if self.strategy.replica.reports else None
        return next(metrics for metrics in self.strategy.ranks.gather(mine) if metrics is not None)

    def _measured(self, outputs: Batch, batch: Batch) -> dict[str, float]:
        """The loss and the metrics of a batch."""
        metrics = {name: value for name, value in self.task.metrics(outputs, batch).items() if name != "loss"}
        return {"loss": float(self.task.loss(outputs, batch)), **metrics}


def averaged(task: BoundTask, sums: Sequence[tuple[Mapping[str, float], int]]) -> tuple[float, dict[str, float]]:
    """The mean loss, and the metrics that follow from the means of what replicas have summed up."""
    samples = sum(count for _, count in sums)
    names = dict.fromkeys(name for part, count in sums if count for name in part)
    means = {name: sum(part.get(name, 0.0) for part, count in sums if count) / samples for name in names}
    return means.pop("loss"), task.final_metrics(means)
