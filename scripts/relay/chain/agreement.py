"""The processes of one training, and what they agree on between steps: to save, to stop, that a save has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from .ending import ChainError
from .report import rank_and_size
from .signals import Interruption

# How far a rank's part of a save is. That of the whole save is the largest of all ranks'.
DONE, WRITING, FAILED = 0.0, 1.0, 2.0
AGREE_SECONDS = 1.0
FIRST_SAVE_SECONDS = 60.0  # before a job ends, it has to be known what a save takes
Part = TypeVar("Part")
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """`control` is a group on CPUs (gloo) of all processes, beside whatever the training uses; None for one process."""

    rank: int = 0
    world_size: int = 1
    control: dist.ProcessGroup | None = None

    @classmethod
    def meet(cls) -> Ranks:
        """Meet the other processes, where there are others. Collective.

        Raises ChainError where a launcher has started several, and they have not made a process group.
        """
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo"))
        rank, size, variable = rank_and_size()
        if size == 1:
            return cls()
        call = "init_process_group"
        if variable != "WORLD_SIZE":  # torch reads the others' variables not
            call += f'("gloo", init_method="file://…", rank=…, world_size={size})'
        alone = "" if variable == "WORLD_SIZE" else "; if each of them trains for itself, set WORLD_SIZE=1"
        raise ChainError(
            f"{variable} is {size}, and there is no process group; call {call} before resume{alone}", aloud=rank == 0
        )

    def largest(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, each for itself. Collective."""
        if self.control is None:
            return values
        together = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(together, dist.ReduceOp.MAX, group=self.control)
        return [float(value) for value in together]

    def gather(self, value: T) -> list[T]:
        """All ranks' values, on every rank. Collective."""
        if self.control is None:
            return [value]
        every: list[Any] = [None] * self.world_size
        dist.all_gather_object(every, value, group=self.control)
        return every

    def alike(self, act: Callable[[], T]) -> T:
        """Do something on each rank; a `ChainError` or OSError of one is raised on all, and told once. Collective."""
        result: list[T] = []
        problem = None
        try:
            result.append(act())
        except ChainError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
        problems = self.gather(problem)
        for rank, problem in enumerate(problems):
            if problem:
                raise ChainError(problem, aloud=self.rank == rank)
        return result[0]

    def of_first(self, act: Callable[[], T]) -> T:
        """What rank 0 gets by doing something, on every rank; its errors too. Collective."""
        return self.gather(self.by_first(act))[0]  # type: ignore[return-value]  # rank 0's is there

    def by_first(self, act: Callable[[], T]) -> T | None:
        """The same; but the others get None, such as for a file that rank 0 has opened. Collective."""
        return self.alike(lambda: act() if self.rank == 0 else None)


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


class Decision(NamedTuple):
    """What all ranks do after this step. `stopped` says why the job ends here; `progress` is that of the save.

    `write`: what has gathered is written, as rank 0 wished.
    """

    progress: float
    save: bool
    stopped: str | None
    write: bool = False


class Agreement:
    """What the ranks agree on, from the step on at which this job began.

    Rank 0's clock decides when to save and when to agree again. Any rank's reason stops all of them.
    """

    def __init__(
        self, ranks: Ranks, interruption: Interruption, step: int, save_seconds: float, save_steps: int | None
    ) -> None:
        self.ranks, self.interruption = ranks, interruption
        self.save_seconds, self.save_steps = save_seconds, save_steps
        self._began = self._next = self._agreed_step = self._saved_step = step
        self._agreed_at = self._saved_at = time.monotonic()
        self.longest_step_seconds = 0.0  # since the ranks agreed before

    def due(self, step: int) -> bool:
        """Whether the ranks agree after this step; the same on all of them. For one process it costs nothing."""
        if self.ranks.control is None:
            return True
        return step >= self._next or (self.save_steps is not None and step % self.save_steps == 0)

    def reach(self, step: int, progress: float, longest_save_seconds: float, *, write: bool = False) -> Decision:
        """Decide what is done after this step. Collective.

        `progress` is this rank's part of the save under way; `longest_save_seconds` is 0 where none has ended.
        """
        now, reason = time.monotonic(), self.interruption.reason
        wanted = [progress, float(reason is not None), float(write), 0.0, 0.0]
        if self.ranks.rank == 0:
            per_step = (now - self._agreed_at) / max(1, step - self._agreed_step)
            wanted[3:] = [float(self._save_is_due(now, longest_save_seconds)), AGREE_SECONDS // max(per_step, 1e-4)]
        progress, stop, write_now, save, interval = self.ranks.largest(wanted)
        # The first steps of a process include all that is compiled then: no later step takes as long.
        self.longest_step_seconds = now - self._agreed_at if self._agreed_step > self._began else 0.0
        self.interruption.leave_room(longest_save_seconds, self.longest_step_seconds)
        self._next = step + max(1, int(interval))
        stopped = next(each for each in self.ranks.gather(reason) if each) if stop else None
        return Decision(progress, bool(save) or self._save_by_steps(step), stopped, bool(write_now))

    def done(self, step: int, *, saved: bool) -> None:
        """What was decided has been done: the time until the next agreement counts from here."""
        self._agreed_step, self._agreed_at = step, time.monotonic()
        if saved:
            self._saved_step, self._saved_at = step, self._agreed_at

    def _save_is_due(self, now: float, longest_save_seconds: float) -> bool:
        unknown = self.interruption.end_time is not None and longest_save_seconds == 0
        seconds = min(self.save_seconds, FIRST_SAVE_SECONDS) if unknown else self.save_seconds
        return now - self._saved_at >= seconds

    def _save_by_steps(self, step: int) -> bool:
        """Whether a save by steps is due. While the one before is still being written, it stays due."""
        return self.save_steps is not None and step // self.save_steps > self._saved_step // self.save_steps
