"""What is done to a run beside its training. What only one command needs, it imports itself."""

import sys
from argparse import ArgumentParser

from relay.base.errors import UserError
from relay.base.files import write_json
from relay.base.options import add
from relay.run_folder import replaced, run_chain
from relay.run_folder.places import Places


def start(parser: ArgumentParser, words: list[str]) -> int:
    """Move aside what there is of the run."""
    given = add(parser, "run", "results").parse_args(words)
    if moved := replaced.put_aside(Places(given.results, given.run)):
        print(f"run {given.run} starts anew: {moved}, until it has a result")
    return 0


def summarise(parser: ArgumentParser, words: list[str]) -> int:
    """Write `summary.json`. Raises UserError for the records of another start."""
    given = add(parser, "run", "results").parse_args(words)
    from relay.run_folder.summary import FILE
    from relay.script import summary as of_script
    from relay.spec.run import Run
    from relay.training import summary as of_task

    places = Places(given.results, given.run)
    run = Run.read(places.run / "run.json")
    if problem := run_chain.of_another_start(places.run, places.work):
        raise UserError(f"run {run.id}: {problem}")
    kind = of_script if run.strategy.script else of_task
    summary = kind.summarise(run, places.work)
    write_json(places.run / FILE, summary.as_dict())
    if summary.status == "done":
        replaced.forget(places)
    return 0


def export(parser: ArgumentParser, words: list[str]) -> int:
    """Write the model's file. Raises UserError."""
    given = add(parser, "run", "results", "output").parse_args(words)
    from relay.export.model_file import export as write  # with torch

    facts = write(given.run, given.results, given.output)
    print(f"{given.output}: {facts['task']} after step {facts['step']}, {given.output.stat().st_size / 1e6:.1f} MB")
    return 0


def adopt(parser: ArgumentParser, words: list[str]) -> int:
    """Hand a checkpoint over, or say whether that can be done. Raises UserError."""
    parser.epilog = """\
Under another strategy, or on another number of devices; the task, the global batch and the seed are the same. The
workflow then trains what is left of it."""
    parser.add_argument("--list", action="store_true", help="only show the runs, their ids, and how far they have come")
    parser.add_argument("--source", help="the run that has the checkpoint: an id below results/runs")
    parser.add_argument("--run", help="the run that goes on from it: planned, and not begun")
    parser.add_argument("--dry-run", action="store_true", help="only say whether it can be done")
    given = add(parser, "results").parse_args(words)
    from relay.training import adoption
    from relay.training.runs_table import runs_table

    if given.list:
        print(runs_table(given.results))
        return 0
    if not (given.source and given.run):
        parser.error("--source and --run are needed; --list shows the runs")
    step = adoption.adopt(given.results, given.source, given.run, dry=given.dry_run)
    word = "could go on" if given.dry_run else "goes on"
    print(f"run {given.run} {word} from step {step} of run {given.source}")
    for line in adoption.against(given.results, given.source, step):
        difference = line.removeprefix("it ")
        print(f"warning: run {given.run} {difference}. The report strikes out runs that continue it", file=sys.stderr)
    return 0
