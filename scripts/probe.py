"""The largest batch that fits: python scripts/probe.py --spec run.json --output results/probe/SETTING.json."""

from relay.base import entry
from relay.probe import command_line
from relay.probe.job import run_probe


def main() -> int:
    """Parse the command line, and probe."""
    given, limits = command_line.parsed(__doc__, "the batch per device")
    return run_probe(given.spec, given.results, given.output, limits, given.attempt)


if __name__ == "__main__":
    entry.run(main)
