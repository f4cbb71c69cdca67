"""Right: a framework that owns its loop and calls back after each step, as Lightning does."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import SimpleQueue

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Batch, Requirements

StepFunction = Callable[[Batch], torch.Tensor]


class Framework:
    """It fetches batches, trains with them, and stops where its callback says so."""

    def __init__(self, train_step: StepFunction, on_step_end: Callable[[torch.Tensor], bool]) -> None:
        self.train_step, self.on_step_end = train_step, on_step_end

    def fit(self, batches: Iterable[Batch]) -> None:
        """The loop, which is not ours."""
        for batch in batches:
            if self.on_step_end(self.train_step(batch)):
                return


class OwnLoop(ByHand):
    """Right: the framework's loop runs in a thread, which waits while the caller has the loss."""

    requirements = Requirements(least_devices=2, divides=("samples",), devices=("cpu",))

    def train_steps(self, batches: Iterator[Batch]) -> Generator[torch.Tensor, None, None]:
        told: SimpleQueue[torch.Tensor | BaseException | None] = SimpleQueue()  # a loss; what was raised; the end
        stop: SimpleQueue[bool] = SimpleQueue()

        def on_step_end(loss: torch.Tensor) -> bool:
            told.put(loss)
            return stop.get()

        def fit() -> None:
            try:  # on a GPU: torch.cuda.set_device(self.ranks.device) first, because each thread has its own
                Framework(self.train_step, on_step_end).fit(batches)
                told.put(None)
            except BaseException as error:
                told.put(error)

        thread = threading.Thread(target=fit, name="framework")
        thread.start()
        try:
            while isinstance(loss := told.get(), torch.Tensor):
                yield loss
                stop.put(False)
            if loss is not None:
                raise loss
        finally:  # also where the caller ends early
            stop.put(True)
            thread.join()
