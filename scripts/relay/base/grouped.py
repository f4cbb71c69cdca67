"""Things that have something in common, together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Those with the same key, in the order of the first of each."""
    groups: dict[Key, list[Thing]] = {}
    for each in things:
        groups.setdefault(key(each), []).append(each)
    return groups
