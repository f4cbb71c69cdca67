"""Which part of a global batch a process has."""

from typing import NamedTuple


class Replica(NamedTuple):
    """Which slice of each global batch this process consumes.

    `reports`: the slice's loss and outputs end up in this process; it is true in exactly one process per replica.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a replica
    count: int  # type: ignore[assignment]
    reports: bool = True
