"""Trains runs again, from their first step: python scripts/train_again.py NAME [NAME …] -- --profile profiles/local

NAME is a strategy, a setting or a run, as `--list` shows them. What they have trained moves to results/replaced. It is
deleted once the new training has a result; until then you can move it back. All that follows `--` is Snakemake's: it
then trains them. Without `--`, the next call of Snakemake does.
"""

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from relay.base import entry, options
from relay.base.errors import UserError
from relay.driver.claim import claim
from relay.run_folder import replaced
from relay.run_folder.places import Places
from relay.spec.messages import show, unknown
from relay.spec.run import Run
from relay.training.runs_table import runs_table


def main() -> int:
    """Parse the command line, put aside what was trained, and start Snakemake."""
    own, snakemake = divided(sys.argv[1:])
    parser = options.parser(__doc__, "results")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a strategy, a setting or a run")
    parser.add_argument("--list", action="store_true", help="only show the runs, their ids, and how far they have come")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be put aside")
    given = parser.parse_args(own)
    if given.list:
        print(runs_table(given.results))
        return 0
    if not given.names:
        parser.error("name a strategy, a setting or a run; --list shows the runs")
    found = chosen(given.results, given.names)
    if given.dry_run:
        put_aside(found, dry=True)
        return 0
    held = claim(Path.cwd())  # no driver works on them
    put_aside(found, dry=False)
    held.release()
    if snakemake is not None:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "snakemake", *snakemake])
    print("The next call of snakemake trains them.")
    return 0


def put_aside(runs: Collection[Places], *, dry: bool) -> None:
    """Put aside what these runs have trained, and say so."""
    for places in runs:
        told = replaced.trained(places)
        if told and not dry:
            replaced.put_aside(places)
        goes = "would be moved" if dry else "are moved"
        print(f"{places.run_id}: {f'{told} {goes} to {replaced.folder(places)}' if told else 'nothing is trained yet'}")


def divided(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Our own words, and Snakemake's; None without `--`."""
    if "--" not in words:
        return words, None
    place = words.index("--")
    return words[:place], words[place + 1 :]


def chosen(results: Path, names: Collection[str]) -> list[Places]:
    """The runs that go by one of these names. Raises UserError for a name that no run goes by."""
    by_name: dict[str, list[Places]] = {}
    for run in _runs(results):
        for name in {run.id, run.setting_id, run.strategy.name}:
            by_name.setdefault(name, []).append(Places(results, run.id))
    for name in names:
        if name not in by_name:
            what = f"{show(name)} is no strategy, setting or run in {results / 'runs'}"
            raise UserError(unknown(what, name, by_name))
    return list(dict.fromkeys(places for name in names for places in by_name[name]))


def _runs(results: Path) -> Iterator[Run]:
    for path in sorted(results.glob("runs/*/run.json")):
        with suppress(UserError):  # of another version
            yield Run.read(path)


if __name__ == "__main__":
    entry.run(main)
