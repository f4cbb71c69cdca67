"""CUDA graphs of pretended GPUs: what is captured changes nothing, and every replay computes it again, in place.

As with CUDA, what waits for the device while a step is captured is an error, and Python is asked once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

aten = torch.ops.aten
_capturing: Graph | None = None
_mode = 0  # of telling where the CPU waits: 0 not at all, 1 by a warning


class Graph:
    """What `torch.cuda.CUDAGraph` is."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[[], Any], Any]] = []
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.replays = 0

    def note(self, call: Callable[[], Any], result: Any) -> None:
        """Keep what was computed, to compute it again into the same tensors."""
        self._calls.append((call, result))

    def keep(self, written: torch.Tensor) -> None:
        """Remember a tensor before something is written into it."""
        whole = torch.empty(0, dtype=torch.uint8).set_(written.untyped_storage())
        self._before.setdefault(whole.data_ptr(), (whole, whole.clone()))

    def ended(self) -> None:
        """Put everything back: a capture computes nothing."""
        for whole, before in self._before.values():
            whole.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        """Compute all of it."""
        self.replays += 1
        with torch.no_grad():
            for call, results in self._calls:
                for old, new in zip(tensors(results), tensors(call()), strict=True):
                    # What was given a size by a later operation, as `arange` does, is filled by that one.
                    if old.data_ptr() != new.data_ptr() and old.shape == new.shape:
                        old.copy_(new)

    def reset(self) -> None:
        """Forget all of it."""
        self._calls.clear()


@contextmanager
def capture(graph: Graph, **_: Any) -> Iterator[None]:
    """What `torch.cuda.graph` is."""
    global _capturing  # noqa: PLW0603
    _capturing, drawn = graph, torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        _capturing = None
        graph.ended()
        for number, state in enumerate(drawn):
            torch.cuda.set_rng_state(state, number)


def set_mode(mode: int | str) -> None:
    """What `torch.cuda.set_sync_debug_mode` is."""
    global _mode  # noqa: PLW0603
    _mode = {"default": 0, "warn": 1}[mode] if isinstance(mode, str) else mode


def get_mode() -> int:
    """What `torch.cuda.get_sync_debug_mode` is."""
    return _mode


def waits() -> None:
    """The CPU is about to wait for the device."""
    if _capturing:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    if _mode:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=2)


def computed(function: Any, args: Any, kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
    """Compute an operation, whose tensors are those on the CPU; note it while something is captured."""
    if _capturing is None:
        return call()
    schema = getattr(function, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in tensors(args[place] if place < len(args) else kwargs.get(argument.name)):
                _capturing.keep(tensor)
    result = call()
    _capturing.note(call, result)
    return result


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in it."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [each for part in value for each in tensors(part)] if isinstance(value, list | tuple) else []
