"""One process on one GPU, which every strategy with several GPUs has to beat."""

from relay.strategies.base import Requirements, Strategy


class SingleGPU(Strategy):
    """Trains the whole batch on one device."""

    requirements = Requirements(processes="one", devices=("cuda",), twin="cpu")
    capture_after = 3
    plain = True

    def build(self) -> None:
        self.build_whole()
