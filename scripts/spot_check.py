"""A spot check's job: python scripts/spot_check.py --spec spot_check.json --runs RUN RUN --output verdict.json."""

from relay.base import entry, options
from relay.spot_check.job import run_spot_check


def main() -> int:
    """Parse the command line and check the runs."""
    parser = options.parser(__doc__, "spec", "output", "attempt", "results")
    parser.add_argument("--runs", nargs="+", required=True, help="the runs' ids: folders below results/runs")
    parser.add_argument("--beside", nargs="*", default=[], help="runs of other settings that the same process checks")
    given = parser.parse_args()
    return run_spot_check(given.spec, given.runs, given.results, given.output, given.attempt, beside=given.beside)


if __name__ == "__main__":
    entry.run(main)
