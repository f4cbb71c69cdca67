"""One process on CPU cores; PyTorch's intra-op and inter-op threads are the only parallelism (documents 000, 004)."""

from relay.strategies.base import Requirements, Strategy


class CPU(Strategy):
    """Trains the whole batch in one process, with the run's `threads` and `interop_threads`."""

    requirements = Requirements(processes="one", devices=("cpu",), backends=("gloo",))
    plain = True

    def build(self) -> None:
        self.build_whole()
