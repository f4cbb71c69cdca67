"""Wrong: its loss is no number, though it trains well."""

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class NaNLoss(ByHand):
    """Wrong: its loss is no number, though it trains well."""

    requirements = Requirements(processes="one", devices=("cpu",))

    def train_step(self, batch: Batch) -> torch.Tensor:
        return super().train_step(batch) * float("nan")
