"""Preflight, as a job: python scripts/preflight.py --spec preflight.json --output results/preflight/ID/facts.json;
and its answers on one page: python scripts/preflight.py --page results/preflight [--only ID …].
"""

from pathlib import Path

from relay.base import entry, options


def main() -> int:
    """Parse the command line; find out what is there, or show what was found."""
    parser = options.parser(__doc__, "attempt", "results")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--spec", type=Path, help="the specification of a run of this shape and stack")
    what.add_argument("--page", type=Path, metavar="FOLDER", help="show what the preflights below this folder found")
    parser.add_argument("--only", nargs="*", metavar="ID", help="of the page: these preflights alone, run or not")
    parser.add_argument("--output", type=Path, help="where the facts go (.json); others beside it")
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
