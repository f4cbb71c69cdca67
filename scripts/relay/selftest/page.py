"""The self-test's page, in Markdown: what worked, what did not, what was skipped and why, with versions and figures.

Its text is `workflow/report/selftest.md.j2`.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from relay.base.entry import ROOT
from relay.base.files import read_json_or
from relay.selftest.rows import PARTS, Outcome, Row

OUTCOMES: tuple[Outcome, ...] = ("worked", "failed", "not run", "skipped")
WRONG: tuple[Outcome, ...] = ("failed", "not run")


def counted(rows: Sequence[Row]) -> str:
    """How many rows came to what, such as '60 worked, 1 failed'."""
    counts = Counter(row.outcome for row in rows)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome] or outcome == "worked")


def wrong(rows: Sequence[Row]) -> list[Row]:
    """The rows of what did not work, or could not be tried."""
    return [row for row in rows if row.outcome in WRONG]


def write(rows: Sequence[Row], results: Path, where: str, path: Path, running: str = "") -> None:
    """Write the page. `where` says which machine or cluster was tested.

    While the self-test runs, `running` says how far it is. What has not come to its turn is left out then.
    """
    rows = [row for row in rows if not (running and row.outcome == "not run")]
    loader = FileSystemLoader(ROOT / "workflow" / "report")
    texts = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    texts.filters["cell"] = lambda text: " ".join(text.replace("|", "\\|").split())
    texts.filters["whole"] = lambda seconds: "" if seconds is None else f"{seconds:.0f}"
    text = texts.get_template("selftest.md.j2").render(
        where=where,
        count=counted(rows),
        running=running,
        written=datetime.now(UTC).isoformat(timespec="minutes"),
        seen=_seen(results),
        wrong=wrong(rows),
        worked={part: [row for row in rows if (row.part, row.outcome) == (part, "worked")] for part in PARTS},
        skipped=[row for row in rows if row.outcome == "skipped"],
    )
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def _seen(results: Path) -> dict[str, list[str]]:
    """What the preflights have seen: nodes, devices, versions."""
    facts = [read_json_or(path, {}) for path in sorted(results.glob("preflight/*/facts.json"))]
    ranks = [rank for each in facts for rank in each.get("ranks", ())]
    return {
        "Nodes": sorted({rank["node"] for rank in ranks}),
        "Devices": sorted({name for rank in ranks for name in _devices(rank)}),
        "Versions": sorted({_versions(rank) for rank in ranks}),
    }


def _devices(rank: dict[str, Any]) -> list[str]:
    """What a rank has to compute on."""
    if rank["cuda"]:
        return [f"{gpu['name']} ({gpu['memory_mb']} MB)" for gpu in rank["cuda"]["devices"]]
    return [f"{rank['node_cpus']} CPUs"]


def _versions(rank: dict[str, Any]) -> str:
    torch = rank["torch"]
    versions = {"Python": rank.get("python_version"), "torch": torch["version"]}
    if rank["cuda"]:
        versions |= {"CUDA": torch["cuda"], "NCCL": torch["nccl"], "driver": rank["driver"]["version"]}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
