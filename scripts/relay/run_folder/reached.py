"""How far a run has come that can be gone on with: by its own checkpoints, or by those of a script."""

from __future__ import annotations

from pathlib import Path

from relay.base.files import read_json_or
from relay.run_folder.sealed import complete

FILE = "reached.json"  # the newest step that a script has saved, as it tells


def newest(work: Path) -> int:
    """The step of the newest checkpoint; 0 where there is none."""
    step = read_json_or(work / FILE, {}).get("step")
    return max([*complete(work), step if isinstance(step, int) else 0])
