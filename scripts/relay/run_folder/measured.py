"""What a run's first processes have measured for all later ones, such as where a pipeline is cut."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relay.base.files import read_json, write_json

MEASURED = "measured.json"


def read_measured(folder: Path) -> dict[str, Any]:
    """What is known so far; empty before the first measurement. `folder` is that of its `run.json`."""
    measured: dict[str, Any] = read_json(folder / MEASURED) or {}
    return measured


def write_measured(folder: Path, measured: Mapping[str, Any]) -> None:
    """Keep what was measured, unless it stands there already."""
    if measured and read_measured(folder) != measured:
        write_json(folder / MEASURED, dict(measured))
