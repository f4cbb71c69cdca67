"""The files that tell jobs what to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import write_json
from relay.run_folder.snapshot import PLANNED, freeze
from relay.spec.job import Job
from relay.spec.run import Gate, Run, Specification, Training
from relay.training.changed_code import code_of_today


def write(
    results: Path,
    kinds: Mapping[str, Iterable[Specification]],
    job: Callable[[Specification], Job | None],
    only: Specification | None = None,
) -> None:
    """Write specifications, or `only` one of them, with what `job` says that each asks for.

    `kinds` are by the place of their files, such as `runs/{id}/run.json`. A run that has ended keeps its file: it says
    what its jobs asked for, whatever later ones would.
    """
    for place, specifications in kinds.items():
        for each in specifications:
            path = results / place.format(id=each.id)
            if only in (None, each) and not _ended(path, each):
                each.write(path, job(each))


def freeze_code(results: Path, kinds: Mapping[str, Iterable[Specification]]) -> None:
    """Freeze the code of all these jobs, and note which is whose. What is edited from now on is for the next plan."""
    folder, made = results / "code", dict[tuple[str, ...], dict[str, str]]()
    found: dict[str, dict[str, str]] = {}
    for each in chain.from_iterable(kinds.values()):
        assert isinstance(each, Training)
        strategy = each.strategy.name if isinstance(each, Run | Gate) else ""  # the others know nothing of strategies
        if (its := (strategy, each.task.name, each.task.file)) not in made:
            plain = {} if strategy else {"code": freeze(None, each.task.file, folder=folder).name}
            made[its] = plain or code_of_today(each, folder)
        found[f"{each.kind} {each.id}"] = made[its]
    write_json(folder / PLANNED, found)


def _ended(path: Path, specification: Specification) -> bool:
    if not (path.parent / "summary.json").exists():
        return False
    try:
        return Run.read(path) == specification
    except (OSError, UserError):
        return False
