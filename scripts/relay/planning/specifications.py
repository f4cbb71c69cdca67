"""The files that tell jobs what to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from relay.base.errors import UserError
from relay.spec.job import Job
from relay.spec.run import Run, Specification


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


def _ended(path: Path, specification: Specification) -> bool:
    if not (path.parent / "summary.json").exists():
        return False
    try:
        return Run.read(path) == specification
    except (OSError, UserError):
        return False
