"""Imports of torch and of what needs it: the largest part of what a process costs before it computes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

# torch imports its compiler when the first optimizer is made. Imported later than all else, its many objects would be
# looked through for garbage while training, which makes small steps slower by a tenth and more.
COMPILER = "torch._dynamo"
WITHOUT_OPTIMIZER = ("preflight.facts", "script.process")


@contextmanager
def importing() -> Iterator[None]:
    """Import within this. It leaves no garbage, and looking for some would take a sixth of the time.

    What was imported stays: it is not looked through later, either.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()


def imported(role: str) -> ModuleType:
    """The module of a worker's role, such as `training.trainer`, with what torch would import for it later."""
    with importing():
        module = import_module(f"relay.{role}")
        if role not in WITHOUT_OPTIMIZER:
            import_module(COMPILER)
    return module
