"""One process has a stage of the model on each of its GPUs, as in document 002. Micro-batches let them overlap."""

from typing import Any

import torch
from torch import nn

from relay.strategies._stage import Stage
from relay.strategies._stages import Staged
from relay.strategies.base import Requirements
from relay.task import batches
from relay.task.batches import Batch


class ModelParallelInProcess(Staged):
    """The batch passes from GPU to GPU. With several micro-batches, different GPUs compute at the same time.

    That needs no schedule. The process queues work on all GPUs without waiting, and each GPU starts as soon as its
    inputs have arrived.
    """

    requirements = Requirements(
        processes="one",
        least_devices=2,
        devices=("cuda",),
        divides=("parameters", "gradients", "optimizer"),
        twin="model_parallel",
        needs=("layers", "cuts"),
        options={"micro_batches": 1, "cut_before": ""},
    )

    def build(self, micro_batches: int, cut_before: str) -> None:
        self.micro_batches, places = micro_batches, self.devices()
        self.plan = self.planned(len(places), cut_before)
        self.stages = {index: Stage(self.plan, index, place) for index, place in enumerate(places)}
        self.model: nn.Module = self.plan.model  # its modules are those of the stages
        self.make_optimizer()

    def devices(self) -> list[torch.device]:
        """The device of each stage, in the order of stages."""
        return list(self.ranks.devices)

    def forward(self, batch: Batch) -> Any:
        return batches.moved(super().forward(batch), self.ranks.device)  # where the targets are

    def _walk(self, batch: Batch) -> Any:
        values: Any = ()
        for stage in self.stages.values():
            stage.relay_batch = batches.moved(batch, stage.relay_device)
            values = stage.relay_compute([value.to(stage.relay_device) for value in values])
        return values
