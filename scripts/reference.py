"""A reference's job: python scripts/reference.py --spec reference.json --output reference.pt."""

from relay.base import entry, options
from relay.equivalence.job import run_reference


def main() -> int:
    """Parse the command line and train the reference."""
    parser = options.parser(__doc__, "spec", "output", "attempt", "results")
    parser.add_argument("--beside", nargs="*", default=[], help="ids of gates that the same process judges afterwards")
    given = parser.parse_args()
    gates = given.spec.parents[2] / "gates"
    beside = [gates / gate / "gate.json" for gate in given.beside]
    return run_reference(given.spec, given.results, given.output, given.attempt, beside=beside)


if __name__ == "__main__":
    entry.run(main)
