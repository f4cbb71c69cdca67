"""Imports of torch and of what needs it: the largest part of what a process costs before it computes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import within this. It leaves no garbage, and looking for some would take a sixth of the time.

    What was imported stays: it is not looked through later, either, and forks share its memory.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()
