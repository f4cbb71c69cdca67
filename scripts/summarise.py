"""The summary of a finished run: python scripts/summarise.py --run ID."""

from relay.base import entry, options
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.run_folder import chain, replaced
from relay.spec.run import Run
from relay.training.job import Places
from relay.training.summary import summarise


def main() -> int:
    """Parse the command line and write `summary.json`."""
    given = options.parser(__doc__, "run", "results").parse_args()
    places = Places(given.results, given.run)
    run = Run.read(places.run / "run.json")
    if problem := chain.of_another_start(places.run, places.work):
        raise UserError(f"run {run.id}: {problem}")
    summary = summarise(run, places.work)
    write_json(places.run / "summary.json", summary)
    if summary["status"] == "done":
        replaced.forget(places)
    return 0


if __name__ == "__main__":
    entry.run(main)
