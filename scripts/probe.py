"""The largest batch that fits: python scripts/probe.py --spec run.json --output results/probe/SETTING.json."""

from relay.base import entry, options
from relay.probe.job import Limits, run_probe


def main() -> int:
    """Parse the command line, and probe."""
    parser = options.parser(__doc__, "spec", "output", "attempt", "memory-fraction", "memory-mb", "results")
    parser.add_argument("--unit", type=int, required=True, help="batches per device are multiples of this")
    parser.add_argument("--first", type=int, required=True, help="the batch per device to begin with")
    parser.add_argument("--most", type=int, required=True, help="the largest batch per device to try")
    parser.add_argument("--minutes", type=float, required=True, help="how long to search")
    given = parser.parse_args()
    limits = Limits(given.unit, given.first, given.most, given.minutes, given.memory_fraction, given.memory_mb)
    return run_probe(given.spec, given.results, given.output, limits, given.attempt)


if __name__ == "__main__":
    entry.run(main)
