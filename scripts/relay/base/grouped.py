"""Things that have something in common, together."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Those with the same key, in the order of the first of each."""
    return gathered((key(each), each) for each in things)


def gathered(pairs: Iterable[tuple[Key, Thing]]) -> dict[Key, list[Thing]]:
    """What stands behind the same key, in the order of the first of each."""
    groups: dict[Key, list[Thing]] = {}
    for key, each in pairs:
        groups.setdefault(key, []).append(each)
    return groups
