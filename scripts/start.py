"""Puts aside what an older start of a run has trained: python scripts/start.py --run ID."""

from relay.base import entry, options
from relay.run_folder import replaced
from relay.run_folder.places import Places


def main() -> int:
    """Parse the command line and move what is there."""
    given = options.parser(__doc__, "run", "results").parse_args()
    places = Places(given.results, given.run)
    if told := replaced.put_aside(places):
        print(f"run {given.run} starts anew: {told}, until it has a result")
    return 0


if __name__ == "__main__":
    entry.run(main)
