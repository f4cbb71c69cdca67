"""One process uses several GPUs, and each step copies the model to all of them (document 002's nn.DataParallel)."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from relay.spec.tasks import Card
from relay.strategies.base import Requirements, Strategy
from relay.task import batches


class DataParallel(Strategy):
    """PyTorch's DataParallel over the GPUs of the process. Parameters, loss and optimiser are on the first GPU."""

    requirements = Requirements(
        processes="one",
        devices=("cuda",),
        least_devices=2,
        divides=("samples",),
        twin="ddp",
        compiles=False,
        copies_model=True,
    )

    def build(self) -> None:
        self.build_whole()
        self.module = Copies(self.model, list(self.ranks.devices), self.task.spec.card)


class Copies(nn.DataParallel):
    """torch's, for any outputs: it would refuse a dataclass, and make a vector of a loss that the model computes."""

    def __init__(self, model: nn.Module, devices: Sequence[Any], card: Card) -> None:
        super().__init__(model, devices)
        self.card = card

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[Any]) -> Any:
        """The arguments of each copy; notes how many samples each has."""
        parts = super().scatter(inputs, kwargs, device_ids)
        self.samples = [batches.count(part) for part in zip(*parts, strict=True)]
        return parts

    def gather(self, outputs: Sequence[Any], _output_device: Any) -> Any:
        """All copies' outputs on the first GPU, as one batch; of what has no dimensions, the mean over samples."""
        parts = [batches.moved(part, self.src_device_obj) for part in outputs]
        return batches.joined(parts, self.samples, self.card.along(self.module.training))
