"""A reference's job: python scripts/reference.py --spec reference.json --output reference.pt."""

from relay.base import entry, options
from relay.equivalence.job import run_reference


def main() -> int:
    """Parse the command line and train the reference."""
    parser = options.parser(__doc__, "spec", "output", "attempt", "results")
    given = parser.parse_args()
    return run_reference(given.spec, given.results, given.output, given.attempt)


if __name__ == "__main__":
    entry.run(main)
