"""The summary of a finished run: python scripts/summarise.py --run ID --segments N."""

import argparse
from pathlib import Path

from relay.base import entry
from relay.base.files import write_json
from relay.spec.run import Run
from relay.training.job import Places
from relay.training.summary import summarise


def main() -> int:
    """Parse the command line and write `summary.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="the run's id")
    parser.add_argument("--segments", type=int, required=True, help="how many segments its chain was planned in")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results directory")
    given = parser.parse_args()
    places = Places(given.results, given.run)
    run = Run.read(places.run / "run.json")
    write_json(places.run / "summary.json", summarise(run, places.work, given.segments))
    return 0


if __name__ == "__main__":
    entry.run(main)
