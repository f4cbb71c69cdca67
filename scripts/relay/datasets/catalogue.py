"""Every dataset that can be prepared, collected from the files of the kinds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from relay.base.errors import UserError
from relay.datasets import kinds
from relay.datasets.kind import Known
from relay.spec.dataset import DatasetSpec


@cache
def known() -> dict[str, Known]:
    """The entries of all kinds, by name. Raises UserError where two have one name, or one is not of its file's kind."""
    found: dict[str, Known] = {}
    for kind in kinds.names():
        for entry in kinds.load(kind).datasets:
            if entry.spec.kind != kind:
                raise UserError(f"dataset: '{entry.spec.name}' stands in kinds/{kind}.py and says '{entry.spec.kind}'")
            if entry.spec.name in found:
                raise UserError(f"dataset: '{entry.spec.name}' is there twice; rename one")
            found[entry.spec.name] = entry
    return found


def entry(name: str) -> Known:
    """The entry of that name, or of the family to which it belongs. Raises UserError for an unknown one."""
    if name in known():
        return known()[name]
    for one in known().values():
        if one.family and name.startswith(one.family):
            return one
    families = sorted({f"{one.family}…" for one in known().values() if one.family})
    raise UserError(f"dataset: '{name}' is unknown; allowed are {', '.join([*sorted(known()), *families])}")


def dataset(name: str, **changes: Any) -> DatasetSpec:
    """The dataset of that name, with another shape, other counts or classes. Raises UserError for an unknown one."""
    if name not in known():
        raise UserError(f"dataset: '{name}' is unknown; allowed are {', '.join(sorted(known()))}")
    return replace(known()[name].spec, **changes)
