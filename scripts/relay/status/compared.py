"""Of which results a comparison was made: one digest of the plan, and of every summary and verdict that it reads.

The script that it recommends names the folder and the Python of its training: after a move it is made again.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.base.files import read_json, read_json_or, write_json

FILE = "compared.json"
FORMAT = 6  # grows where the same results are to be compared anew


def note(plan: Path, results: Path) -> None:
    """Keep of what the comparison was made, once all of its files are there. Raises OSError."""
    write_json(results / FILE, {"sha256": digest(read_json(plan), results), **_place()})


def differs(plan: Mapping[str, Any], results: Path) -> str:
    """Why the comparison is to be made again of this plan and these results, here; '' where it need not be."""
    noted = read_json_or(results / FILE, {})
    if noted.get("sha256") != digest(plan, results):
        return "was made of other results or settings"
    moved = [f"{name} {noted.get(name)}" for name, here in _place().items() if noted.get(name) != here]
    return f"was made with {' and '.join(moved)}, which its script names" if moved else ""


def _place() -> dict[str, str]:
    return {"folder": str(Path.cwd()), "Python": sys.executable}


def digest(plan: Mapping[str, Any], results: Path) -> str:
    """SHA-256, in hex, over the plan and the bytes of its runs' summaries and verdicts; a missing file counts, too."""
    sha256 = hashlib.sha256(json.dumps([FORMAT, plan], sort_keys=True).encode())
    runs = [(run["gate"], run["setting"]) for run in plan["runs"]]
    for run in plan["runs"]:
        content = _add(sha256, results, results / "runs" / run["id"] / "summary.json")
        if b'"adopted_from": {' in content:  # it inherits what is found against the runs that it went on from
            runs += _adopted(content)
    for kind, ids in (("gates", {gate for gate, _ in runs}), ("spot_checks", {setting for _, setting in runs})):
        for id in sorted(ids):
            _add(sha256, results, results / "equivalence" / kind / id / "verdict.json")
    return sha256.hexdigest()


def _add(sha256: Any, results: Path, path: Path) -> bytes:
    """Add a file to the digest; what it holds, and nothing where it is missing."""
    content = path.read_bytes() if path.is_file() else b""
    sha256.update(f"{path.relative_to(results)} {len(content)} ".encode() + content)
    return content


def _adopted(summary: bytes) -> Iterator[tuple[str, str]]:
    """The gates and settings of the runs that a run went on from, one after the other."""
    with suppress(ValueError, AttributeError):
        adopted = json.loads(summary).get("adopted_from")
        while adopted:
            yield str(adopted.get("gate")), str(adopted.get("setting"))
            adopted = adopted.get("adopted_from")
