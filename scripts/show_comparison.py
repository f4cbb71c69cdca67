"""Prints the comparison in the terminal: python scripts/show_comparison.py --results results"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from relay.base import entry
from relay.comparison.columns import COMPARISON, read_csv
from relay.comparison.terminal import show


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0. Raises UserError where there is no comparison."""
    result = argparse.ArgumentParser(description=__doc__)
    result.add_argument("--results", type=Path, default=Path("results"), help="the folder of results")
    options = result.parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    rows = read_csv(options.results / "comparison.csv", COMPARISON)
    show(Console(highlight=False), rows, options.results / "comparison.html")
    return 0


if __name__ == "__main__":
    entry.run(main)
