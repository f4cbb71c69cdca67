"""What the script has made, and has not handed over: it would start anew in each job."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from .state import State, parameters

_KINDS = {LRScheduler: "scheduler", Optimizer: "optimizer", torch.amp.GradScaler: "scaler", AveragedModel: "ema"}


def forgotten(things: Mapping[str, Any], state: State) -> Iterator[str]:
    """Each thing of torch's that keeps a state and was not handed over, in one line."""
    kept = {id(value) for each in state.optimizers.values() for value in _values(each.state_dict()["state"])}
    given = {
        id(part)
        for thing in things.values()
        for part in _parts(thing)
        if part is thing or not isinstance(part, Optimizer) or {id(value) for value in _values(part.state)} <= kept
    }
    kinds = _KINDS | ({sys.modules["numpy"].random.Generator: "rng"} if "numpy" in sys.modules else {})
    for each in gc.get_objects():
        # Its type, not isinstance: asking a stranger's proxy for its class may import what it stands for.
        for kind, name in kinds.items():
            if issubclass(type(each), kind) and id(each) not in given:
                yield f"a {type(each).__name__} was made and is not saved; give it: resume(…, {name}={name})"
    held = {id(each) for module in state.modules.values() for each in module.parameters()}
    for name, optimizer in state.optimizers.items():
        if missing := sum(id(each) not in held for each in parameters(optimizer)):
            yield f"{name} trains {missing} parameters that are not saved; give their module: resume(…, module=module)"


def _values(state: Mapping[Any, Any]) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer's state."""
    return (value for its in state.values() for value in its.values() if isinstance(value, torch.Tensor))


def _parts(thing: Any) -> Iterator[Any]:
    """A thing, and what it consists of, such as the schedulers of a SequentialLR."""
    yield thing
    for value in list(getattr(thing, "__dict__", {}).values()):
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, tuple(_KINDS)):
                yield from _parts(each) if isinstance(each, LRScheduler) else [each]
