"""A gate's job: python scripts/gate.py --spec gate.json --reference reference.pt --output verdict.json."""

from relay.base import entry, options
from relay.equivalence.job import run_gate


def main() -> int:
    """Parse the command line and judge the strategy."""
    parser = options.parser(__doc__, "spec", "output", "reference", "attempt", "results")
    parser.add_argument("--beside", nargs="*", default=[], help="ids of gates that the same processes judge afterwards")
    given = parser.parse_args()
    beside = [given.spec.parents[1] / gate / given.spec.name for gate in given.beside]
    return run_gate(given.spec, given.reference, given.results, given.output, given.attempt, beside=beside)


if __name__ == "__main__":
    entry.run(main)
