"""Right: rank 0 collects the gradients, steps, and sends the parameters to all."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class ParameterServer(ByHand):
    """Right: rank 0 collects the gradients, steps, and sends the parameters to all. It computes a slice, too."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.forward(batch), batch)
        loss.backward()
        self.exchange()
        return loss.detach()

    def exchange(self) -> None:
        """Step on rank 0 with the mean of all gradients."""
        for gradient in self.gradients():
            dist.reduce(gradient, 0)
            gradient /= self.computing
        if self.ranks.rank == 0:
            self.optimizer.step()
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, 0)

    @property
    def computing(self) -> int:
        """How many ranks compute."""
        return self.ranks.world_size

    def save(self, directory: Path) -> Future[Any]:
        """Every rank may write any tensor, so that all have the optimizer's state meanwhile."""
        states = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        # An optimizer may keep a number of steps beside what is as large as the parameter.
        empty = [{kind: torch.zeros_like(held) for kind, held in state.items()} for state in states]
        for state, kinds in zip(states, self.ranks.gather(empty)[0], strict=True):
            for kind, zeros in kinds.items():
                dist.broadcast(state.setdefault(kind, zeros), 0)
        written = super().save(directory)
        self._keep_on_the_first()
        return written

    def load(self, directory: Path) -> None:
        super().load(directory)
        self._keep_on_the_first()

    def _keep_on_the_first(self) -> None:
        if self.ranks.rank > 0:
            self.optimizer.state.clear()
