"""The largest batch that fits: python scripts/probe.py --spec run.json --output results/probe/SETTING.json."""

import argparse
from pathlib import Path

from relay.base import entry
from relay.probe.job import Limits, run_probe


def main() -> int:
    """Parse the command line, and probe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="the run.json of one of the setting's runs")
    parser.add_argument("--output", type=Path, required=True, help="where the answer goes (.json)")
    parser.add_argument("--unit", type=int, required=True, help="batches per device are multiples of this")
    parser.add_argument("--first", type=int, required=True, help="the batch per device to begin with")
    parser.add_argument("--most", type=int, required=True, help="the largest batch per device to try")
    parser.add_argument("--minutes", type=float, required=True, help="how long to search")
    parser.add_argument("--memory-fraction", type=float, required=True, help="the part of the memory to fill")
    parser.add_argument("--memory-mb", type=int, help="main memory of a node, where no job says it")
    parser.add_argument("--attempt", type=int, default=1, help="1, or more for a retry of the same job")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results directory")
    given = parser.parse_args()
    limits = Limits(given.unit, given.first, given.most, given.minutes, given.memory_fraction, given.memory_mb)
    return run_probe(given.spec, given.results, given.output, limits, given.attempt)


if __name__ == "__main__":
    entry.run(main)
