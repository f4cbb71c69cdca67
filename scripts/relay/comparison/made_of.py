"""Of which results a comparison was made: one digest of the plan and of every file that it reads of its runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relay.base.files import read_json, read_json_or, write_json

FILE = "compared.json"


def note(plan: Path, results: Path) -> None:
    """Keep of what the comparison was made, once all of its files are there. Raises OSError."""
    write_json(results / FILE, {"sha256": digest(read_json(plan), results)})


def noted(results: Path) -> str | None:
    """The digest that was kept; None where there is none."""
    found = read_json_or(results / FILE, None)
    return found.get("sha256") if isinstance(found, dict) else None


def digest(plan: Mapping[str, Any], results: Path) -> str:
    """SHA-256, in hex, over the plan and the bytes of its runs' summaries and verdicts; a missing file counts, too."""
    made = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    for path in _read(plan, results):
        content = path.read_bytes() if path.is_file() else b""
        made.update(f"{path.relative_to(results)} {len(content)} ".encode() + content)
    return made.hexdigest()


def _read(plan: Mapping[str, Any], results: Path) -> Iterator[Path]:
    runs = plan["runs"]
    yield from (results / "runs" / run["id"] / "summary.json" for run in runs)
    for kind, ids in (("gates", {run["gate"] for run in runs}), ("spot_checks", {run["setting"] for run in runs})):
        yield from (results / "equivalence" / kind / id / "verdict.json" for id in sorted(ids))
