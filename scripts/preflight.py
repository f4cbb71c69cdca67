"""Preflight, as a job: python scripts/preflight.py --spec preflight.json --output results/preflight/ID/facts.json;
and its answers on one page: python scripts/preflight.py --page results/preflight [--only ID …].
"""

import argparse
from pathlib import Path

from relay.base import entry


def main() -> int:
    """Parse the command line; find out what is there, or show what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--spec", type=Path, help="the specification of a run of this shape and stack")
    what.add_argument("--page", type=Path, metavar="FOLDER", help="show what the preflights below this folder found")
    parser.add_argument("--only", nargs="*", metavar="ID", help="of the page: these preflights alone, run or not")
    parser.add_argument("--output", type=Path, help="where the facts go (.json); others beside it")
    parser.add_argument("--attempt", type=int, default=1, help="1, or more for a retry of the same job")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results directory")
    given = parser.parse_args()
    if given.page:
        from relay.preflight.page import show

        return show(given.page, given.only)
    if given.output is None:
        parser.error("--output is needed with --spec")
    from relay.preflight.job import run_preflight

    return run_preflight(given.spec, given.results, given.output, given.attempt)


if __name__ == "__main__":
    entry.run(main)
