"""What a run's first processes have measured for all later ones, such as where a pipeline is cut.

It is kept twice: beside `run.json`, and beside the checkpoints, where another cut would not go on bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from relay.base.files import read_json_or, write_json_over

MEASURED = "measured.json"


def read_measured(*folders: Path) -> dict[str, Any]:
    """What is known so far, from the first of the folders that has it undamaged; empty before the first measurement."""
    for folder in folders:
        content = read_json_or(folder / MEASURED, None)
        measured = content.get("measured") if isinstance(content, dict) else None
        if isinstance(measured, dict) and content == _kept(measured):
            return measured
        if (folder / MEASURED).exists():
            print(f"warning: {folder / MEASURED} is damaged and passed over", flush=True)
    return {}


def write_measured(measured: Mapping[str, Any], *folders: Path) -> None:
    """Keep what was measured in each of the folders, unless it stands there already. Raises OSError."""
    for folder in folders:
        kept = _kept(measured)
        if measured and read_json_or(folder / MEASURED, None) != kept:
            write_json_over(folder / MEASURED, kept)


def _kept(measured: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content, as it is read back."""
    text = json.dumps(measured)  # in its own order: that of a network's layers
    return {"measured": json.loads(text), "sha256": sha256(text.encode()).hexdigest()}
