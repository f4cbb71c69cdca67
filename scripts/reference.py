"""A reference's job: python scripts/reference.py --spec reference.json --output reference.pt."""

from relay.base import entry, options
from relay.equivalence.job import beside, run_reference


def main() -> int:
    """Parse the command line and train the reference."""
    parser = options.parser(__doc__, "spec", "output", "attempt", "results")
    parser.add_argument(
        "--beside", nargs="*", default=[], help="gates that the same process judges afterwards: GATE:REFERENCE"
    )
    given = parser.parse_args()
    others = beside(given.beside, given.spec.parents[2])
    return run_reference(given.spec, given.results, given.output, given.attempt, beside=others)


if __name__ == "__main__":
    entry.run(main)
