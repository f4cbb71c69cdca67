"""One process uses several GPUs, and each step copies the model to all of them (document 002's nn.DataParallel)."""

from torch import nn

from relay.strategies.base import Requirements, Strategy


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
        self.forward = nn.DataParallel(self.model, list(self.ranks.devices))  # type: ignore[method-assign]
