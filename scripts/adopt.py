"""Let a planned run go on from another run's newest checkpoint: python scripts/adopt.py --source RUN --run RUN.

Under another strategy, or on another number of devices; the task, the global batch and the seed are the same. The
workflow then trains what is left of it.
"""

import argparse
from pathlib import Path

from relay import entry
from relay.adoption import adopt


def main() -> int:
    """Parse the command line and hand the checkpoint over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="the run that has the checkpoint: an id below results/runs")
    parser.add_argument("--run", required=True, help="the run that goes on from it: planned, and not begun")
    parser.add_argument("--dry-run", action="store_true", help="only say whether it can be done")
    parser.add_argument("--results", type=Path, default=Path("results"), help="the results directory")
    given = parser.parse_args()
    step = adopt(given.results, given.source, given.run, dry=given.dry_run)
    word = "could go on" if given.dry_run else "goes on"
    print(f"run {given.run} {word} from step {step} of run {given.source}")
    return 0


if __name__ == "__main__":
    entry.run(main)
