"""The processes of one training: which of them this one is, and how they agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .ending import ChainError
from .report import rank_and_size

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
        mine = self.alike(lambda: act() if self.rank == 0 else None)
        return self.gather(mine)[0]  # type: ignore[return-value]  # rank 0's is there
