"""Wrong: it evaluates large batches in bfloat16."""

from typing import Any

import torch

from relay.strategies.base import Batch, Requirements, Strategy
from relay.task import batches


class EvaluationLowered(Strategy):
    """Wrong: it evaluates large batches in bfloat16."""

    requirements = Requirements(processes="one", divides=())

    def build(self) -> None:
        self.build_whole()

    def predict(self, batch: Batch) -> Any:
        with torch.autocast(
            "cpu", torch.bfloat16, enabled=batches.count(batch) > 16 and self.task.dtype == torch.float32
        ):
            return batches.cast(super().predict(batch), self.task.dtype)
