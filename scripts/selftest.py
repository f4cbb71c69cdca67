"""One part of the self-test: python scripts/selftest.py --part resume --spec run.json --output PART.json.

A part is `resume`, or a fault that is planted.
"""

from relay.base import entry, options
from relay.selftest.job import run_part
from relay.selftest.parts import PARTS


def main() -> int:
    """Parse the command line, and do the part."""
    parser = options.parser(__doc__, "spec", "output", "results", "attempt")
    parser.add_argument("--part", required=True, help=f"one of: {', '.join(PARTS)}")
    given = parser.parse_args()
    return run_part(given.part, given.spec, given.results, given.output)


if __name__ == "__main__":
    entry.run(main)
