"""A trained model in C++: python scripts/libtorch.py --spec FILE [--run ID] --output results/libtorch/SETTING.json."""

from relay.base import entry, options
from relay.libtorch.job import run_libtorch


def main() -> int:
    """Parse the command line, and compare."""
    parser = options.parser(__doc__, "spec", "results", "output", "attempt")
    parser.add_argument("--run", help="the run whose model is compared; without: the smallest program")
    given = parser.parse_args()
    return run_libtorch(given.spec, given.run, given.results, given.output, given.attempt)


if __name__ == "__main__":
    entry.run(main)
