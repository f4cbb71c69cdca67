"""One process on one GPU: what every multi-GPU strategy has to beat."""

from relay.strategies.base import Requirements, Strategy


class SingleGPU(Strategy):
    """The whole batch on one device."""

    requirements = Requirements(processes="one", devices=("cuda",), twin="cpu")

    def build(self) -> None:
        self.build_whole()
