"""Wrong: evaluation draws random numbers, so that the training after it drops other units."""

from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements
from relay.task import batches


class EvaluationDraws(ByHand):
    """Wrong: evaluation draws random numbers, so that the training after it drops other units."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def predict(self, batch: Batch) -> Any:
        order = torch.randperm(batches.count(batch))
        return batches.taken(super().predict(batches.taken(batch, order)), order.argsort())
