"""The largest model that fits: python scripts/largest_model.py --spec X.run.json --output X.json."""

from relay.base import entry
from relay.probe import command_line
from relay.probe.largest_model import run_largest_model


def main() -> int:
    """Parse the command line, and search."""
    given, limits = command_line.parsed(__doc__, "the depth")
    return run_largest_model(given.spec, given.results, given.output, limits, given.attempt)


if __name__ == "__main__":
    entry.run(main)
