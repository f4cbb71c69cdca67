"""A reference's job: python scripts/reference.py --spec reference.json --output reference.pt."""

import argparse
from pathlib import Path

from relay.base import entry
from relay.equivalence.job import run_reference


def main() -> int:
    """Parse the command line and train the reference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="the reference's reference.json")
    parser.add_argument("--output", type=Path, required=True, help="where the trained reference goes (.pt)")
    parser.add_argument("--attempt", type=int, default=1, help="1, or more for a retry of the same job")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results directory")
    given = parser.parse_args()
    return run_reference(given.spec, given.results, given.output, given.attempt)


if __name__ == "__main__":
    entry.run(main)
