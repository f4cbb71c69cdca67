"""A look at a task, as a job: python scripts/look.py --spec look.json --output results/cards/ID.json"""

from relay.base import entry, options
from relay.card.job import run_look


def main() -> int:
    """Parse the command line and look."""
    given = options.parser(__doc__, "spec", "results", "output", "attempt").parse_args()
    return run_look(given.spec, given.results, given.output, given.attempt)


if __name__ == "__main__":
    entry.run(main)
