"""One save at a time in the background, of which all ranks together know whether it has ended."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .ranks import Ranks

# How far a rank's part of a save is. That of the whole save is the largest of all ranks'.
DONE, WRITING, FAILED = 0.0, 1.0, 2.0
Part = TypeVar("Part")


@dataclass
class Saving(Generic[Part]):
    """A save under way: this rank's part, and when it began (seconds of the monotonic clock)."""

    step: int
    partial: Path
    part: Future[Part]
    began: float

    @property
    def progress(self) -> float:
        """DONE, WRITING or FAILED, on this rank."""
        if not self.part.done():
            return WRITING
        return FAILED if self.part.exception() else DONE


class Background(Generic[Part]):
    """What saves in the background.

    `longest_save_seconds` is the longest from a save's beginning until it was complete, in this job or an earlier one;
    0 where none has ended.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.longest_save_seconds = 0.0
        self._saving: Saving[Part] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")

    @property
    def progress(self) -> float:
        """How far this rank is, for the ranks to agree on; DONE without a save."""
        return self._saving.progress if self._saving else DONE

    def agree(self, progress: float) -> bool:
        """Told the largest `progress` of all ranks: end the save if all have written. Whether another can begin.

        Collective. Raises what `_failed` does where one rank could not write, and what `_written` does.
        """
        if self._saving and progress == FAILED:
            self._failed(self._saving)
        if self._saving and progress == DONE:
            self._written(self._saving)
            self._saving = None
        return self._saving is None

    def finish(self) -> None:
        """Wait until the save that was begun, if any, is complete. Collective; raises as `agree` does."""
        progress = WRITING
        while not self.agree(progress):
            # Often enough that the ranks who wait hear of each other before the group's timeout.
            wait([self._saving.part] if self._saving else [], timeout=1.0)
            (progress,) = self.ranks.largest([self.progress])

    def _reason(self, mine: str | None) -> tuple[int, str]:
        """The first rank that tells why a save has failed, and its reason. Collective."""
        every = enumerate(self.ranks.gather(mine))
        return next(((rank, reason) for rank, reason in every if reason), (0, "no rank tells why"))

    def _written(self, saving: Saving[Part]) -> None:
        """All ranks have written. Collective."""
        raise NotImplementedError

    def _failed(self, saving: Saving[Part]) -> None:
        """A rank could not write; `_saving` is None afterwards, where nothing is raised. Collective."""
        raise NotImplementedError
