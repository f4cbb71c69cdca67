"""Caches of functions in a process that computes with tensors without data."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager

CACHE = type(functools.cache(lambda: None))
KEPT = ("torch", "relay")  # packages whose functions keep no tensors that they are given


@contextmanager
def emptied() -> Iterator[None]:
    """Empty the caches of other people's functions at the end: they may hold tensors that have no data.

    A model may keep its table of positions in a function with `functools.cache`. What a pass on the meta device, or
    with torch's fake tensors, has left there would be handed to the next real one.
    """
    try:
        yield
    finally:
        for each in gc.get_objects():
            if type(each) is CACHE and str(each.__module__).partition(".")[0] not in KEPT:
                each.cache_clear()
