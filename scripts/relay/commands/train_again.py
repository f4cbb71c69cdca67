"""relay train-again NAME [NAME …] -- --profile profiles/local

NAME is a strategy, a setting or a run of the plan, as `--list` shows them. What they have trained is moved aside. It is
deleted once the new training has a result; until then `--undo` takes it back. All that follows `--` is Snakemake's: it
then trains what is missing. Without `--`, the next call of Snakemake does.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import read_json_or
from relay.base.options import add
from relay.commands.drive import divided, snakemake
from relay.driver.claim import claim
from relay.driver.first_look import dry
from relay.run_folder import replaced
from relay.run_folder.places import Places
from relay.spec.messages import show, unknown
from relay.spec.run import Run
from relay.training.runs_table import runs_table


def train_again(parser: ArgumentParser, words: list[str]) -> int:
    """Parse the command line, put aside what was trained, and start Snakemake."""
    own, to_snakemake = divided(words)
    parser.epilog = __doc__
    parser.add_argument("names", nargs="*", metavar="NAME", help="a strategy, a setting or a run")
    parser.add_argument("--list", action="store_true", help="only show the runs, their ids, and how far they have come")
    parser.add_argument("-n", "--dry-run", action="store_true", help="only say what would be put aside")
    parser.add_argument("--undo", action="store_true", help="take back what was moved aside")
    given = add(parser, "results").parse_args(own)
    if given.list:
        print(runs_table(given.results))
        return 0
    if not given.names:
        parser.error("name a strategy, a setting or a run; --list shows the runs")
    places_of_runs = chosen(given.results, given.names)
    if given.dry_run or dry(to_snakemake or ()):
        put_aside(places_of_runs, dry=True)
        return 0
    held = claim(Path.cwd())  # no driver works on them
    if given.undo:
        for places in places_of_runs:
            replaced.take_back(places)
            print(f"{places.run_id}: is as it was")
        return 0
    put_aside(places_of_runs, dry=False)
    held.release()
    if to_snakemake is not None:
        sys.stdout.flush()
        os.execv(sys.executable, snakemake(to_snakemake))
    print("The next call of snakemake trains them.")
    return 0


def put_aside(runs: Collection[Places], *, dry: bool) -> None:
    """Put aside what these runs have trained, and say so."""
    for places in runs:
        if dry:
            outcome = replaced.trained(places) and f"{replaced.trained(places)} would be put aside"
        else:
            outcome = replaced.put_aside(places)
        print(f"{places.run_id}: {outcome or 'nothing is trained yet'}", flush=True)


def chosen(results: Path, names: Collection[str]) -> list[Places]:
    """The runs that go by one of these names. Raises UserError for a name that no run goes by.

    A run that the last plan does not hold, such as the recommended one, goes by its id alone: no call would train it.
    """
    plan = read_json_or(results / "plan.json", None)
    planned = {run["id"] for run in plan["runs"]} if plan else None
    by_name: dict[str, list[Places]] = {}
    for run in _runs(results):
        in_plan = not run.id.startswith("recommended-") if planned is None else run.id in planned
        for name in {run.id, run.setting_id, run.strategy.name} if in_plan else {run.id}:
            by_name.setdefault(name, []).append(Places(results, run.id))
    for name in names:
        if name not in by_name:
            refusal = f"{show(name)} is no strategy, setting or run in {results / 'runs'}"
            raise UserError(unknown(refusal, name, by_name))
    return list(dict.fromkeys(places for name in names for places in by_name[name]))


def _runs(results: Path) -> Iterator[Run]:
    for path in sorted(results.glob("runs/*/run.json")):
        with suppress(UserError):  # of another version
            yield Run.read(path)
