"""One segment of a run, by hand or as a job: python scripts/train.py --run ID --first 0 --last 440."""

from relay.base import entry, options
from relay.training.job import Places, run_segment


def main() -> int:
    """Parse the command line and train the segment."""
    parser = options.parser(__doc__, "run", "first", "last", "attempt", "minutes", "results")
    given = parser.parse_args()
    return run_segment(Places(given.results, given.run), given.first, given.last, given.attempt, given.minutes)


if __name__ == "__main__":
    entry.run(main)
