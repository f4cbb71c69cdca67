"""Wrong: each stage of a pipeline clips by the norm of its own gradients."""

import torch

from relay.strategies.base import Requirements
from relay.strategies.pipeline import Pipeline


class ClipsItsStage(Pipeline):
    """Wrong: as what clips in the optimiser's own step does in each stage."""

    requirements = Requirements(
        least_devices=2,
        group="all",
        divides=("parameters", "gradients", "optimizer"),
        options={"schedule": "1f1b", "micro_batches": 4, "cut_before": ""},
        pipelined=True,
    )

    def over_stages(self, sum_of_mine: torch.Tensor) -> torch.Tensor:
        return sum_of_mine
