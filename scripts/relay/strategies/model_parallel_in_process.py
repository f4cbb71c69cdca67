"""One process holds a stage of the layers on each of its GPUs, as in document 002, which also lets parts overlap."""

from __future__ import annotations

import torch
from torch import nn

from relay.strategies._stages import Staged
from relay.strategies.base import Replica, Requirements


class ModelParallelInProcess(Staged):
    """The batch walks over the GPUs; with micro-batches, one GPU computes the next while another has the last.

    Nothing has to be scheduled for that: work is queued on every GPU without waiting, and each starts its own as soon
    as what it needs has come.
    """

    requirements = Requirements(
        processes="one",
        least_devices=2,
        devices=("cuda",),
        divides=("parameters", "gradients", "optimizer"),
        twin="model_parallel",
        options={"micro_batches": 1},
    )

    def build(self, micro_batches: int) -> None:
        self.replica, self.micro_batches = Replica(0, 1), micro_batches
        self.places = self.devices()
        network = self.task.model()
        cuts = self.cut(network, self.example(micro_batches), len(self.places))
        self.parts = [network.part(names).to(place) for names, place in zip(cuts, self.places, strict=True)]
        self.model: nn.Module = network  # the same layers, where they are now
        self.make_optimizer()

    def devices(self) -> list[torch.device]:
        """Where the stages are, in their order."""
        return list(self.ranks.devices)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._through(part) for part in inputs.chunk(self.micro_batches)])

    def _through(self, passing: torch.Tensor) -> torch.Tensor:
        for stage, place in zip(self.parts, self.places, strict=True):
            passing = stage(passing.to(place))
        return passing.to(self.ranks.device)  # where the targets are
