"""Right: all gradients are copied into one flat buffer, which is averaged at once."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Flattened(ByHand):
    """Right: all gradients are copied into one flat buffer, which is averaged at once."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def exchange(self) -> None:
        gradients = self.gradients()
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.average(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
