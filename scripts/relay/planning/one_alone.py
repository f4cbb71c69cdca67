"""`snakemake chain`: one training alone, which goes on as jobs until it has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from relay.base.files import read_json_or
from relay.planning.plan import Plan
from relay.run_folder.places import Places
from relay.spec.labels import counted

TARGET = "chain"


def refusals(plan: Plan, targets: Collection[str]) -> list[str]:
    """Why this target of Snakemake cannot be made: the config has several settings, and nobody says which."""
    if TARGET not in targets or len(plan.settings) == 1:
        return []
    return [
        f"target '{TARGET}': trains one setting alone, and the config has {counted(len(plan.settings), 'setting')}; "
        "give a config with one, or name a strategy as the target"
    ]


def trained(plan: Plan, results: Path) -> Iterator[str]:
    """What was trained, and where it lies."""
    for run in plan.runs:
        if run.repeat:
            continue
        places = Places(results, run.id)
        summary = read_json_or(places.run / "summary.json", {})
        jobs = counted(int(summary.get("attempts", 0)), "job")
        if run.strategy.script:
            yield f"{run.strategy.name} has ended, in {jobs}: its folder is {places.folder}"
        else:
            yield f"run {run.id} has ended, in {jobs}; `snakemake export` writes its model"
