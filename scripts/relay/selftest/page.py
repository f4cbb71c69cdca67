"""The self-test's page, in Markdown: what worked, what did not, what was skipped and why, with versions and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relay.base.files import read_json_or
from relay.selftest.rows import PARTS, Outcome, Row

OUTCOMES: tuple[Outcome, ...] = ("worked", "failed", "not run", "skipped")
WRONG: tuple[Outcome, ...] = ("failed", "not run")
INTRODUCTION = (
    "Each section is a row of `docs/untested.md`. What worked on a GPU moves there from *never run* to *tested*, with "
    "the devices and versions above."
)


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
    lines = [f"# Self-test of {where}: {counted(rows)}", ""]
    lines += [f"**This page is not complete.** Still running: {running}.", ""] if running else []
    lines += [*_versions(results), ""]
    lines += ["## What did not work", "", *(_table(wrong(rows), part=True) if wrong(rows) else ["Nothing."]), ""]
    lines += ["## What worked", "", INTRODUCTION, ""]
    for part in PARTS:
        if worked := [row for row in rows if row.part == part and row.outcome == "worked"]:
            lines += [f"### {part}", "", *_table(worked), ""]
    skipped = [row for row in rows if row.outcome == "skipped"]
    lines += ["## What was skipped, and why", "", *(_table(skipped) if skipped else ["Nothing."])]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _versions(results: Path) -> Iterator[str]:
    """The day, and what the preflights have seen: nodes, devices, versions."""
    yield f"- Written: {datetime.now(UTC).isoformat(timespec='minutes')}"
    facts = [read_json_or(path, {}) for path in sorted(results.glob("preflight/*/facts.json"))]
    ranks = [rank for each in facts for rank in each.get("ranks", ())]
    seen: dict[str, Iterable[str]] = {
        "Nodes": (rank["node"] for rank in ranks),
        "Devices": (name for rank in ranks for name in _devices(rank)),
        "Versions": (_named(rank) for rank in ranks),
    }
    for name, values in seen.items():
        yield f"- {name}: {'; '.join(sorted(set(values))) or 'not known, because no preflight has ended'}"


def _devices(rank: dict[str, Any]) -> list[str]:
    """What a rank has to compute on."""
    if rank["cuda"]:
        return [f"{gpu['name']} ({gpu['memory_mb']} MB)" for gpu in rank["cuda"]["devices"]]
    return [f"{rank['node_cpus']} CPUs"]


def _named(rank: dict[str, Any]) -> str:
    torch = rank["torch"]
    versions = {"Python": rank.get("python_version"), "torch": torch["version"]}
    if rank["cuda"]:
        versions |= {"CUDA": torch["cuda"], "NCCL": torch["nccl"], "driver": rank["driver"]["version"]}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _table(rows: Sequence[Row], *, part: bool = False) -> list[str]:
    """Rows as a table; with `part`, also what they belong to, and what came of them."""
    head = ["of", "what", "outcome", "told", "s"] if part else ["what", "told", "s"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
        cells = [row.part, row.what, row.outcome, row.text, seconds] if part else [row.what, row.text, seconds]
        lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return lines
