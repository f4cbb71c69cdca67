"""The summary of a finished run: python scripts/summarise.py --run ID."""

from relay.base import entry, options
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.run_folder import chain, replaced
from relay.script import summary as of_script
from relay.spec.run import Run
from relay.training import summary as of_task
from relay.training.job import Places


def main() -> int:
    """Parse the command line and write `summary.json`."""
    given = options.parser(__doc__, "run", "results").parse_args()
    places = Places(given.results, given.run)
    run = Run.read(places.run / "run.json")
    if problem := chain.of_another_start(places.run, places.work):
        raise UserError(f"run {run.id}: {problem}")
    kind = of_script if run.strategy.script else of_task
    summary = kind.summarise(run, places.work)
    write_json(places.run / "summary.json", summary)
    if summary["status"] == "done":
        replaced.forget(places)
    return 0


if __name__ == "__main__":
    entry.run(main)
