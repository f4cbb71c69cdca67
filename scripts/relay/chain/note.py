"""What a script tells `relay-chain` when it stops: launchers such as torchrun do not pass on status 75.

`relay-chain` names a file in the environment. It lies in the node's temporary folder, where some rank of the job runs.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import write_json

NOTE = "RELAY_CHAIN_NOTE"


def leave(step: int, reason: str) -> None:
    """Tell that the state after `step` steps is saved, and why the job stops. Without `relay-chain`, nothing."""
    if place := os.environ.get(NOTE):
        with suppress(OSError):  # on another node than relay-chain's
            write_json(Path(place), {"step": step, "reason": reason})


def read(place: Path) -> dict[str, Any] | None:
    """What was told; None where nothing was."""
    with suppress(OSError, ValueError):
        told: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        return told
    return None
