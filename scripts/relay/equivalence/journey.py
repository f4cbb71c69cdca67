"""What a run does between its steps, under a strategy: it evaluates, saves a checkpoint, and goes on in another job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor

from relay.chain.generators import generators, restore
from relay.equivalence.course import Course, Observed, cloned
from relay.equivalence.plain import Tensors
from relay.equivalence.trials import AFTER, BEFORE
from relay.equivalence.verdict import Verdict
from relay.process.ranks import Ranks
from relay.strategies.base import Strategy

Objects = Sequence[tuple[Observed, Observed]]  # of each rank: what it saw of the first object, and of the second one


class Held(NamedTuple):
    """What a strategy object holds: the whole model, complete on rank 0 alone; this rank's part of the optimizer's
    state, such as "momentum_buffer of 3", the fourth parameter; and the state of fp16's scaler."""

    model: Tensors
    optimizer: Tensors
    scaler: Mapping[str, object] | None

    @classmethod
    def of(cls, strategy: Strategy) -> Held:
        """A copy. Collective."""
        owned = [parameter for group in strategy.optimizer.param_groups for parameter in group["params"]]
        states = [strategy.optimizer.state.get(parameter, {}) for parameter in owned]
        held = {f"{kind} of {place}": tensor for place, state in enumerate(states) for kind, tensor in state.items()}
        local = {name: t.to_local() if isinstance(t, DTensor) else t for name, t in held.items() if torch.is_tensor(t)}
        copies = {name: tensor.detach().cpu().clone() for name, tensor in local.items()}
        return cls(cloned(strategy), copies, strategy.scaler.state_dict() if strategy.scaler else None)


@dataclass
class Journey:
    """A strategy object that trains, predicts and saves, and another one that loads what it saved and goes on.

    `trained` is the first one's whole model at its end, complete on rank 0 alone.
    """

    first: Course
    second: Course
    saved: Held
    loaded: Held
    trained: Tensors

    def observed(self, verdict: Verdict, ranks: Ranks) -> Objects:
        """What all ranks have seen; complete on rank 0 alone, which adds its problems to the verdict. Collective."""
        observed = ranks.collect((self.first.observed(), self.second.observed()))
        types = ranks.collect([line for each in (self.first, self.second) for line in lowered(each.strategy)])
        verdict.tell(line for objects in zip(*observed, strict=True) for seen in objects for line in seen.problems)
        for line in [line for lines in types for line in lines][:1]:
            verdict.problems.append(f"low precision: in {self.first.task.precision}: {line}")
        return observed


def travel(first: Course, second: Course, folder: Path) -> Journey:
    """Train as a run does that goes on in another job. Collective. `folder` gets the checkpoint; all ranks see it.

    Raises EndedEarlyError.
    """
    strategy = first.build()
    for step in first.steps(0, BEFORE + AFTER):
        if step in (0, BEFORE - 1):
            first.predict(step + 1)
        if step == BEFORE - 1:
            saved = Held.of(strategy)
            writing, drawn = strategy.save(folder), generators()  # it is written while the training goes on
    writing.result()
    trained = cloned(strategy)
    first.ranks.barrier()
    resumed = second.build(strategy.measured)
    resumed.load(folder)
    restore(drawn)
    second.ranks.barrier()
    loaded = Held.of(resumed)
    second.predict(BEFORE)
    for _ in second.steps(BEFORE, BEFORE + AFTER):
        pass
    second.predict(BEFORE + AFTER)
    return Journey(first, second, saved, loaded, trained)


def lowered(strategy: Strategy) -> list[str]:
    """What this rank keeps in fewer bits than the task says, in a few words each.

    Single numbers, such as Adam's count of steps, are in any type.
    """
    owned, foreign = dict(strategy.model.named_parameters()), "a parameter of the strategy's own"
    names = {id(parameter): name for name, parameter in owned.items()}
    held: dict[str, list[tuple[str, torch.Tensor]]] = {
        "parameter": [*owned.items()],
        "gradient": [(name, p.grad) for name, p in owned.items() if p.grad is not None],
        "optimizer state": [
            (f"{kind} of {names.get(id(parameter), foreign)}", tensor)
            for parameter, state in strategy.optimizer.state.items()
            for kind, tensor in state.items()
            if torch.is_tensor(tensor) and tensor.dim()
        ],
    }
    expected, lines = strategy.task.dtype, []
    for kind, tensors in held.items():
        # Also of integers, as which states are quantised.
        wrong = [(name, tensor.dtype) for name, tensor in tensors if tensor.dtype.itemsize < expected.itemsize]
        if wrong:
            name, dtype = wrong[0]
            lines.append(f"{kind}: {name} is {short(dtype)}, not {short(expected)} ({len(wrong)} of {len(tensors)})")
    return lines


def short(dtype: torch.dtype) -> str:
    """Its name as people write it."""
    return str(dtype).removeprefix("torch.")
