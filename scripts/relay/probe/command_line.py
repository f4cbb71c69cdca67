"""The command line of a search for what fits."""

from __future__ import annotations

import argparse

from relay.base import options
from relay.spec.probe import Limits


def parsed(description: str | None, size: str) -> tuple[argparse.Namespace, Limits]:
    """The options given, and the search's limits; `size` is what is searched over."""
    parser = options.parser(description, "spec", "output", "attempt", "memory-fraction", "memory-mb", "results")
    parser.add_argument("--unit", type=int, default=1, help=f"{size} is a multiple of this")
    parser.add_argument("--first", type=int, required=True, help=f"{size} to begin with")
    parser.add_argument("--most", type=int, required=True, help=f"the largest that {size} may be")
    parser.add_argument("--minutes", type=float, required=True, help="how long to search")
    given = parser.parse_args()
    limits = Limits(given.unit, given.first, given.most, given.minutes, given.memory_fraction, given.memory_mb)
    return given, limits
