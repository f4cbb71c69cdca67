"""One segment of a run, by hand or as a job: python scripts/train.py --run ID --first 0 --last 440."""

import argparse
from pathlib import Path

from relay.base import entry
from relay.training.job import Places, run_segment


def main() -> int:
    """Parse the command line and train the segment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the run's id: results/runs/ID/run.json describes it")
    parser.add_argument("--first", type=int, required=True, help="the step at which the segment starts")
    parser.add_argument("--last", type=int, required=True, help="the step at which the segment ends")
    parser.add_argument("--attempt", type=int, default=1, help="1, or more for a retry of the same job")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results directory")
    given = parser.parse_args()
    return run_segment(Places(given.results, given.run), given.first, given.last, given.attempt)


if __name__ == "__main__":
    entry.run(main)
