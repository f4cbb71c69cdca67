"""The processes of one training: what each of them knows of the others, and how they tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .ending import ChainError
from .report import rank_and_size

# The slowest rank may need much longer than the fastest to write its part of a checkpoint. This long timeout hides no
# lost peer, because the other group detects it.
SAVING_TIMEOUT = timedelta(hours=2)
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
