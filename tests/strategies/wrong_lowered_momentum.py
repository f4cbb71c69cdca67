"""Wrong: keeps the optimizer's state in bfloat16."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class LoweredMomentum(ByHand):
    """Wrong: keeps the state of float32 parameters in bfloat16 between steps."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        self._cast(torch.bfloat16, torch.float32)
        loss = super().train_step(batch)
        self._cast(torch.float32, torch.bfloat16)
        return loss

    def _cast(self, given: torch.dtype, wanted: torch.dtype) -> None:
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if torch.is_tensor(value) and value.dtype == given:
                    state[name] = value.to(wanted)
