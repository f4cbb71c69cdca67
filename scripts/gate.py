"""A gate's job: python scripts/gate.py --spec gate.json --reference reference.pt --output verdict.json."""

from relay.base import entry, options
from relay.equivalence.job import beside, run_gate


def main() -> int:
    """Parse the command line and judge the strategy."""
    parser = options.parser(__doc__, "spec", "output", "reference", "attempt", "results")
    parser.add_argument(
        "--beside", nargs="*", default=[], help="gates that the same processes judge afterwards: GATE:REFERENCE"
    )
    given = parser.parse_args()
    others = beside(given.beside, given.spec.parents[2])
    return run_gate(given.spec, given.reference, given.results, given.output, given.attempt, beside=others)


if __name__ == "__main__":
    entry.run(main)
