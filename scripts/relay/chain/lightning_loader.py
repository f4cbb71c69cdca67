"""The loaders of Lightning's Trainer: they count their batches, and go on in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .generators import restore
from .place import Place, batches, own_generators
from .workers import heard


class Loader:
    """A loader of the Trainer's that counts its batches, and begins where an earlier job stopped.

    An epoch's order is drawn when its first batch is fetched, and not before: what is drawn then is known. All else is
    as the loader has it.
    """

    def __init__(self, loader: Any, trainer: Any) -> None:
        self.loader, self._trainer = loader, trainer
        self._place = Place()
        self._goes_on = False
        self._own: list[torch.Tensor] = []
        self._generators: dict[str, Any] | None = None
        self._before: Callable[[], None] = lambda: None

    def go_on(self, place: Place, own: list[torch.Tensor]) -> None:
        """Begin the next iteration at this place, with these states of the loader's own generators."""
        self._place, self._own, self._goes_on = place, own, True

    def use(self, generators: dict[str, Any] | None, before: Callable[[], None]) -> None:
        """Restore the process's generators with the next batch; call `before` before each one is fetched."""
        self._generators, self._before = generators, before

    def reached(self, ahead: int) -> dict[str, Any]:
        """The place, as plain values; `ahead` batches were fetched that are not trained yet."""
        place = self._place.state()
        return {**place, "batch": max(0, place["batch"] - ahead)}

    def __iter__(self) -> Iterator[Any]:
        self._before()
        if not self._goes_on:
            self._place = Place(epoch=self._trainer.fit_loop.epoch_progress.current.processed)
        self._goes_on = False
        self._restore()
        place = self._place
        keeps_place = hasattr(self.loader, "load_state_dict")  # the Trainer has it go on by itself
        left = iter(self.loader) if keeps_place else batches(self.loader, place)
        for batch in heard(left):
            place.batch += 1
            yield batch
            self._before()

    def _restore(self) -> None:
        """Whatever was drawn since the job began, the generators go on as they were when it was saved."""
        for each, state in zip(own_generators(self.loader), self._own, strict=False):
            each.set_state(state)
        self._own = []
        if self._generators is not None:
            restore(self._generators)
        self._generators = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # before it is there, as when this is copied
            raise AttributeError(name)
        return getattr(self.loader, name)
