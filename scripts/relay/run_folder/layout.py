"""Which layout a folder of results has: results of two layouts are never mixed."""

from __future__ import annotations

from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import read_json, write_json

# 1: flat fields in run.json, modules of the frozen code in one folder. 2: groups of fields, packages.
# 3: what changes the arithmetic is part of every name; verdicts and records say with what they were made.
LAYOUT = 3
FILE = "layout.json"
# What no later version could go on with; datasets, wheelhouses and environments are good for all.
OF_A_LAYOUT = ("runs", "checkpoints", "equivalence", "code", "speeds", "probe")


def refuse_other(results: Path) -> bool:
    """Whether a folder of results has this version's layout noted. Raises UserError for one of another layout."""
    try:
        known = read_json(results / FILE)
        layout = known["layout"] if known else None
    except (ValueError, TypeError, KeyError):
        layout = "unknown"
    if layout is None and any((results / name).exists() for name in OF_A_LAYOUT):
        layout = 1
    if layout not in (None, LAYOUT):
        raise UserError(
            f"{results}: made by another version of Torch Relay (layout {layout}, this one has {LAYOUT}): "
            "runs have other names, and their frozen code starts otherwise. Nothing is lost: move it "
            f"(mv {results} {results}-{layout}) and begin again here, or go on there with the version that made it. "
            f"Datasets can be kept: mv {results}-{layout}/datasets {results}/"
        )
    return layout is not None


def check_layout(results: Path) -> None:
    """Note this version's layout in a folder of results that has none. Raises UserError for one of another layout."""
    if not refuse_other(results):
        write_json(results / FILE, {"layout": LAYOUT})
