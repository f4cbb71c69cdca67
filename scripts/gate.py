"""A gate's job: python scripts/gate.py --spec gate.json --reference reference.pt --output verdict.json."""

import argparse
from pathlib import Path

from relay.base import entry
from relay.equivalence.job import run_gate


def main() -> int:
    """Parse the command line and judge the strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="the gate's gate.json")
    parser.add_argument("--reference", type=Path, required=True, help="the trained reference (.pt)")
    parser.add_argument("--output", type=Path, required=True, help="where the verdict goes (.json)")
    parser.add_argument("--attempt", type=int, default=1, help="1, or more for a retry of the same job")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results directory")
    given = parser.parse_args()
    return run_gate(given.spec, given.reference, given.results, given.output, given.attempt)


if __name__ == "__main__":
    entry.run(main)
