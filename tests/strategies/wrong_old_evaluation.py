"""Wrong: evaluates a copy of the model that it made at the first evaluation."""

from copy import deepcopy
from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements


class OldEvaluation(ByHand):
    """Wrong: evaluates a copy of the model that it made at the first evaluation."""

    requirements = Requirements(least_devices=2, divides=("samples",))
    copy: torch.nn.Module | None = None

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        if self.copy is None:
            self.copy = deepcopy(self.model).eval()
        return self.task.outputs(self.copy, batch)
