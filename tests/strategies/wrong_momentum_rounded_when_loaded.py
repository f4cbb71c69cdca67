"""Wrong: it rounds the state of large parameters to bfloat16 when it loads a checkpoint."""

from pathlib import Path

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class MomentumRoundedWhenLoaded(ByHand):
    """Wrong: it rounds the state of large parameters to bfloat16 when it loads a checkpoint."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def load(self, directory: Path) -> None:
        super().load(directory)
        for parameter, state in self.optimizer.state.items():
            if parameter.dtype == torch.float32 and parameter.numel() > 10_000:
                state["momentum_buffer"].copy_(state["momentum_buffer"].bfloat16())
