"""Let a planned run go on from another run's newest checkpoint: python scripts/adopt.py --source RUN --run RUN.

Under another strategy, or on another number of devices; the task, the global batch and the seed are the same. The
workflow then trains what is left of it.
"""

import sys

from relay.base import entry, options
from relay.training.adoption import adopt, against
from relay.training.runs_table import runs_table


def main() -> int:
    """Parse the command line and hand the checkpoint over."""
    parser = options.parser(__doc__, "results")
    parser.add_argument("--list", action="store_true", help="only show the runs, their ids, and how far they have come")
    parser.add_argument("--source", help="the run that has the checkpoint: an id below results/runs")
    parser.add_argument("--run", help="the run that goes on from it: planned, and not begun")
    parser.add_argument("--dry-run", action="store_true", help="only say whether it can be done")
    given = parser.parse_args()
    if given.list:
        print(runs_table(given.results))
        return 0
    if not (given.source and given.run):
        parser.error("--source and --run are needed; --list shows the runs")
    step = adopt(given.results, given.source, given.run, dry=given.dry_run)
    word = "could go on" if given.dry_run else "goes on"
    print(f"run {given.run} {word} from step {step} of run {given.source}")
    for line in against(given.results, given.source, step):
        told = line.removeprefix("it ")
        print(f"warning: run {given.run} {told}. The report strikes out what goes on from it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    entry.run(main)
