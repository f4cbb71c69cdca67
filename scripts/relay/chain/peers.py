"""The processes of one training: how they tell each other, and what they agree on between steps.

That is whether to save, to stop, and to write what has gathered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from .signals import Interruption
from .telling import ChainError, rank_and_size

if TYPE_CHECKING:
    from .saving import Saver

# The slowest rank may need much longer than the fastest to write its part of a checkpoint. This long timeout hides no
# lost peer, because the other group detects it.
SAVING_TIMEOUT = timedelta(hours=2)
AGREE_SECONDS = 1.0
FIRST_SAVE_SECONDS = 60.0  # before a job ends, it has to be known what a save takes
T = TypeVar("T")


@dataclass(frozen=True)
class Peers:
    """This process's rank, and groups on CPUs (gloo) of all processes, beside whatever the training uses.

    `control` is for the training's thread, `saving` for the thread that writes checkpoints: two threads must not use
    one group at the same time. Both are None for one process.
    """

    rank: int = 0
    world_size: int = 1
    control: dist.ProcessGroup | None = None
    saving: dist.ProcessGroup | None = None

    @classmethod
    def meet(cls) -> Peers:
        """Meet the other processes, where there are others. Collective.

        Raises ChainError where a launcher has started several, and they have not made a process group.
        """
        if dist.is_available() and dist.is_initialized():
            control = dist.new_group(backend="gloo")
            saving = dist.new_group(backend="gloo", timeout=SAVING_TIMEOUT)
            return cls(dist.get_rank(), dist.get_world_size(), control, saving)
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

    @property
    def patient(self) -> Peers:
        """The same, for what one rank reads or writes for long: the others wait for it as for a save."""
        return replace(self, control=self.saving)

    def largest(self, values: list[float]) -> list[float]:
        """The largest of all ranks' values, each for itself. Collective."""
        if self.control is None:
            return values
        together = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(together, dist.ReduceOp.MAX, group=self.control)
        return [float(value) for value in together]

    def gather(self, value: T, *, saving: bool = False) -> list[T]:
        """All ranks' values, on every rank; `saving`: of the threads that write checkpoints. Collective."""
        group = self.saving if saving else self.control
        if group is None:
            return [value]
        every: list[Any] = [None] * self.world_size
        dist.all_gather_object(every, value, group=group)
        return every

    def wait_for_device(self) -> None:
        """Wait until this process's device has computed what is queued. A script's own steps are not waited for."""

    def alike(self, act: Callable[[], T]) -> T:
        """Do something on each rank; where one cannot, all end. Collective.

        A `ChainError` or OSError of one is raised on all, and told once. A rank raises any other error of its own, such
        as of a script's `state_dict`, as it is, and the others tell of it in a line each.
        """
        result, own, problem = list[T](), None, ""
        try:
            result.append(act())
        except ChainError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ") or repr(error)
        except BaseException as error:
            own, problem = error, f"rank {self.rank} has failed: {type(error).__name__}: {error}".splitlines()[0]
        try:
            by_rank = self.gather((problem, own is not None))
        except Exception as lost:  # a peer has ended: why this rank has failed must not be lost with it
            raise own or lost from None
        if own:
            raise own
        for rank, (problem, is_its_own) in enumerate(by_rank):
            if problem:
                raise ChainError(problem, aloud=is_its_own or rank == self.rank)
        return result[0]

    def of_first(self, act: Callable[[], T]) -> T:
        """What rank 0 gets by doing something, on every rank; its errors too. Collective."""
        return self.gather(self.by_first(act))[0]  # type: ignore[return-value]  # rank 0's is there

    def by_first(self, act: Callable[[], T]) -> T | None:
        """The same; but the others get None, such as for a file that rank 0 has opened. Collective."""
        return self.alike(lambda: act() if self.rank == 0 else None)


class Decision(NamedTuple):
    """What all ranks do after this step. `stopped` says why the job ends here; `progress` is that of the save.

    `write`: what has gathered is written, as rank 0 wished.
    """

    progress: float
    save: bool
    stopped: str | None
    write: bool = False


def check_intervals(save_minutes: float, save_steps: int | None) -> None:
    """Raises ChainError for times and numbers of steps between two saves that are not allowed."""
    if not save_minutes > 0 or (save_steps is not None and save_steps < 1):
        raise ChainError(f"save_minutes={save_minutes}, save_steps={save_steps}: each has to be more than 0")


class Agreement:
    """What the ranks agree on, from the step on at which this job began.

    Rank 0's clock decides when to save and when to agree again. Any rank's reason stops all of them.
    """

    def __init__(
        self, ranks: Peers, interruption: Interruption, step: int, save_seconds: float, save_steps: int | None
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
        self.ranks.wait_for_device()  # the clock would tell of what is queued, not of what is computed
        now, reason = time.monotonic(), self.interruption.reason
        wanted = [progress, float(reason is not None), float(write), 0.0, 0.0]
        if self.ranks.rank == 0:
            per_step = (now - self._agreed_at) / max(1, step - self._agreed_step)
            unknown = self.interruption.end_time is not None and longest_save_seconds == 0
            seconds = min(self.save_seconds, FIRST_SAVE_SECONDS) if unknown else self.save_seconds
            wanted[3:] = [float(now - self._saved_at >= seconds), AGREE_SECONDS // max(per_step, 1e-4)]
        progress, stop, write_now, save, interval = self.ranks.largest(wanted)
        # The first steps of a process include all that is compiled then: no later step takes as long.
        self.longest_step_seconds = now - self._agreed_at if self._agreed_step > self._began else 0.0
        self.interruption.leave_room(longest_save_seconds, self.longest_step_seconds)
        self._next = step + max(1, int(interval))
        stopped = next(each for each in self.ranks.gather(reason) if each) if stop else None
        # While the save before is still being written, one by steps stays due.
        by_steps = self.save_steps is not None and step // self.save_steps > self._saved_step // self.save_steps
        return Decision(progress, bool(save) or by_steps, stopped, bool(write_now))

    def decide(self, step: int, saver: Saver, *, write: bool = False) -> Decision:
        """The same for what saves in the background, which is told how far the save under way is. Collective.

        `save` is then true only where another save can begin. Raises what the save under way has failed with.
        """
        decision = self.reach(step, saver.progress, saver.longest_save_seconds, write=write)
        free = saver.agree(decision.progress)
        # A save that has just ended counts already.
        self.interruption.leave_room(saver.longest_save_seconds, self.longest_step_seconds)
        return decision._replace(save=decision.save and free)

    def done(self, step: int, *, saved: bool) -> None:
        """What was decided has been done: the time until the next agreement counts from here."""
        self._agreed_step, self._agreed_at = step, time.monotonic()
        if saved:
            self._saved_step, self._saved_at = step, self._agreed_at
