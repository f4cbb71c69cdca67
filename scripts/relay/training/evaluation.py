"""Loss and accuracy on the test set, every sample counted once."""

from __future__ import annotations

import torch

from relay.strategies.base import Strategy
from relay.task.data import Resident, Split
from relay.task.task import Task


class Evaluation:
    """Measures a strategy's model on a whole split, in batches of the size that it trains with."""

    def __init__(self, split: Split, task: Task, strategy: Strategy, global_batch_size: int) -> None:
        self.task, self.strategy, self.batch = task, strategy, global_batch_size
        self.data = Resident(split, strategy.ranks.device, task.dtype)
        self.count = len(split)

    def measure(self) -> tuple[float, float | None]:
        """The mean loss, and the accuracy in 0..1 (None for regression; for text, of tokens). Collective.

        The last batch is filled up with repeated samples, because some strategies need equal shapes; these are not
        counted.
        """
        replica = self.strategy.replica
        loss, correct = 0.0, 0.0
        for start in range(0, self.count, self.batch):
            positions = torch.arange(start, start + self.batch).chunk(replica.count)[replica.index]
            inputs, targets = self.data.fetch(positions % self.count)
            outputs = self.strategy.predict(inputs)
            real = int((positions < self.count).sum())  # the repeated ones come last
            if replica.reports and real:
                loss += self.task.loss(outputs[:real], targets[:real]).item() * real
                if self.task.classes is not None:
                    correct += self.task.correct(outputs[:real], targets[:real])
        told = self.strategy.ranks.gather((loss, correct))
        accuracy = sum(c for _, c in told) / self.count if self.task.classes is not None else None
        return sum(part for part, _ in told) / self.count, accuracy
