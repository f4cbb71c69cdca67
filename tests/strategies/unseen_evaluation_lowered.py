"""Wrong: it evaluates large batches in bfloat16."""

import torch

from relay.strategies.base import Requirements, Strategy


class EvaluationLowered(Strategy):
    """Wrong: it evaluates large batches in bfloat16."""

    requirements = Requirements(processes="one", divides=())

    def build(self) -> None:
        self.build_whole()

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=len(inputs) > 16 and self.task.dtype == torch.float32):
            return super().predict(inputs).to(self.task.dtype)
