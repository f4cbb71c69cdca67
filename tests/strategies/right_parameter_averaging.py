"""Right under SGD: each rank steps with its own gradients, then parameters and momenta are averaged."""

import torch
import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class ParameterAveraging(ByHand):
    """Right under SGD, which is linear: each rank steps with its own gradients, then all is averaged."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        pass

    def train_step(self, batch: Batch) -> torch.Tensor:
        loss = super().train_step(batch)
        with torch.no_grad():
            state = [v for held in self.optimizer.state.values() for v in held.values() if torch.is_tensor(v)]
            for tensor in (*self.model.parameters(), *state):
                dist.all_reduce(tensor)
                tensor /= self.ranks.world_size
        return loss
