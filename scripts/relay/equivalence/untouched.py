"""torch, the task and the networks as they were before a strategy was loaded, for a plain training in its process.

A strategy may replace a function of torch, or turn a switch, for its whole process. A plain training beside it would be
changed alike, and show nothing. What stood when this module was imported is therefore put back while one trains.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

import relay.networks.gpt
import relay.networks.resnet18
import relay.task.task  # noqa: F401  # the networks, too: so that their functions are known
from relay.process import machine

# Modules of these packages compute: their functions, and those of their classes.
COMPUTING = ("torch.nn", "torch.optim", "relay.task", "relay.networks")
ABSENT = object()


class Switches(NamedTuple):
    """What decides in which types is computed: `bits` of float32's products, by place, since torch 2.9."""

    bits: list[str]
    products: str | None
    default: torch.dtype
    autocast: bool


@contextmanager
def untouched(precision: str) -> Iterator[None]:
    """Compute within as a process that has never loaded the strategy does, in that precision."""
    changed = {place: now for place, was in _FUNCTIONS.items() if (now := _now(*place)) is not was}
    switched = _switches()
    _put({place: _FUNCTIONS[place] for place in changed})
    _switch(_SWITCHES)
    if torch.cuda.is_available():
        machine.set_precision(precision)
    try:
        yield
    finally:
        _switch(switched)
        _put(changed)


def _functions() -> dict[tuple[Any, str], Any]:
    """Every function that computes, by its owner (a module or class) and name."""
    modules = [module for name, module in list(sys.modules.items()) if _below(name)]
    classes = {v for m in modules for v in list(vars(m).values()) if isinstance(v, type) and _below(v.__module__)}
    owners = [torch, torch.Tensor, *modules, *classes]
    return {(owner, name): v for owner in owners for name, v in list(vars(owner).items()) if _computes(name, v)}


def _below(module: str) -> bool:
    return f"{module}.".startswith(tuple(f"{package}." for package in COMPUTING))


def _computes(name: str, value: object) -> bool:
    special = name.startswith("__") and name not in ("__init__", "__call__")
    return not special and not isinstance(value, type) and (callable(value) or isinstance(value, classmethod))


def _now(owner: Any, name: str) -> Any:
    return vars(owner).get(name, ABSENT)


def _put(functions: dict[tuple[Any, str], Any]) -> None:
    for (owner, name), value in functions.items():
        if value is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def _places() -> list[Any]:
    """Where torch keeps how many bits a product of float32 has; it has the same name everywhere, since torch 2.9."""
    backends = torch.backends
    kinds = [(backends.mkldnn, "matmul"), (backends.mkldnn, "conv"), (backends.mkldnn, "rnn"), (backends.cudnn, "conv")]
    found = [getattr(backend, kind, None) for backend, kind in [*kinds, (backends.cuda, "matmul")]]
    return [place for place in found if hasattr(place, "fp32_precision")]


def _switches() -> Switches:
    return Switches(
        [_bits(place.fp32_precision) for place in _places()],
        _products(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
    )


def _products() -> str | None:
    """How many bits products have; None where torch refuses to tell, because some have others."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _bits(told: str) -> str:
    return "ieee" if told == "none" else told  # not set, which is the same


def _switch(wanted: Switches) -> None:
    """Turn only what is turned otherwise: torch has two ways, and dislikes that they are mixed."""
    if wanted.products is not None and _products() not in (None, wanted.products):
        torch.set_float32_matmul_precision(wanted.products)
    for place, bits in zip(_places(), wanted.bits, strict=True):
        if _bits(place.fp32_precision) != bits:
            place.fp32_precision = bits
    torch.set_default_dtype(wanted.default)
    torch.set_autocast_enabled("cpu", wanted.autocast)


_FUNCTIONS = _functions()
_SWITCHES = _switches()
