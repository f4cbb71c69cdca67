"""One process has a stage of the layers on each of its GPUs, as in document 002. Micro-batches let them overlap."""

from __future__ import annotations

import torch
from torch import nn

from relay.strategies._stages import Staged
from relay.strategies.base import Replica, Requirements


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
        needs=("cuts",),
        options={"micro_batches": 1, "cut_before": ""},
    )

    def build(self, micro_batches: int, cut_before: str) -> None:
        self.replica, self.micro_batches, self.cut_before = Replica(0, 1), micro_batches, cut_before
        self.places = self.devices()
        network = self.task.model()
        cuts = self.cut(network, self.example(micro_batches), len(self.places))
        self.parts = [network.part(names).to(place) for names, place in zip(cuts, self.places, strict=True)]
        self.model: nn.Module = network  # it shares its layers with `parts`
        self.make_optimizer()

    def devices(self) -> list[torch.device]:
        """The device of each stage, in the order of stages."""
        return list(self.ranks.devices)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._through(part) for part in inputs.chunk(self.micro_batches)])

    def _through(self, passing: torch.Tensor) -> torch.Tensor:
        for stage, place in zip(self.parts, self.places, strict=True):
            passing = stage(passing.to(place))
        return passing.to(self.ranks.device)  # where the targets are
