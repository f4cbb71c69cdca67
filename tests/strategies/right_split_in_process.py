"""Right: `model_parallel_in_process` with CPUs in the place of GPUs: two stages in one process."""

import torch

from relay.strategies.base import Requirements
from relay.strategies.model_parallel_in_process import ModelParallelInProcess


class SplitInProcess(ModelParallelInProcess):
    """Right: two stages of one process, each on "a device" of its own."""

    requirements = Requirements(
        processes="one",
        least_devices=2,
        divides=("parameters", "gradients", "optimizer"),
        options={"micro_batches": 1, "cut_before": ""},
    )

    def devices(self) -> list[torch.device]:
        return [self.ranks.device] * 2
