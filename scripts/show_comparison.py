"""Prints the comparison in the terminal: python scripts/show_comparison.py --results results"""

from __future__ import annotations

from rich.console import Console

from relay.base import entry, options
from relay.base.files import read_json_or
from relay.comparison.columns import COMPARISON
from relay.comparison.exports import read_csv
from relay.comparison.terminal import show


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0. Raises UserError where there is no comparison."""
    result = options.parser(__doc__, "results")
    given = result.parse_args(arguments)
    rows = read_csv(given.results / "comparison.csv", COMPARISON)
    answers = (read_json_or(given.results / "answer.json", None) or {}).get("answers", [])
    show(Console(highlight=False), rows, given.results / "comparison.html", answers)
    return 0


if __name__ == "__main__":
    entry.run(main)
