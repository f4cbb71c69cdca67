"""The self-test's page, in Markdown: what worked, what did not, what was skipped and why, with versions and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
    found = Counter(row.outcome for row in rows)
    return ", ".join(f"{found[outcome]} {outcome}" for outcome in OUTCOMES if found[outcome] or outcome == "worked")


def wrong(rows: Sequence[Row]) -> list[Row]:
    """The rows of what did not work, or could not be tried."""
    return [row for row in rows if row.outcome in WRONG]


def write(rows: Sequence[Row], results: Path, where: str, path: Path) -> None:
    """Write the page. `where` says which machine or cluster was tested."""
    lines = [f"# Self-test of {where}: {counted(rows)}", "", *_versions(results), ""]
    lines += ["## What did not work", "", *(_table(wrong(rows), part=True) if wrong(rows) else ["Nothing."]), ""]
    lines += ["## What worked", "", INTRODUCTION, ""]
    for part in PARTS:
        if worked := [row for row in rows if row.part == part and row.outcome == "worked"]:
            lines += [f"### {part}", "", *_table(worked), ""]
    skipped = [row for row in rows if row.outcome == "skipped"]
    lines += ["## What was skipped, and why", "", *(_table(skipped, part=True) if skipped else ["Nothing."])]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _versions(results: Path) -> Iterator[str]:
    """The day, the nodes and their devices, and the versions, of all jobs that looked at them."""
    yield f"- Written: {datetime.now(UTC).isoformat(timespec='minutes')}"
    summaries = [read_json_or(path, {}) for path in sorted(results.glob("runs/*/summary.json"))]
    known: dict[str, set[str]] = {"Nodes": set(), "Devices": set(), "Versions": set()}
    for found in filter(None, summaries):
        known["Nodes"] |= set(found["hosts"])
        known["Devices"].add(found["device_name"])
        known["Versions"].add(_named(found["versions"]))
    for name, values in known.items():
        yield f"- {name}: {'; '.join(sorted(values)) or 'not known, because no run has ended'}"


def _named(versions: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _table(rows: Sequence[Row], *, part: bool = False) -> list[str]:
    """Rows as a table; with `part`, also what they belong to, and what came of them."""
    head = ["of", "what", "outcome", "told", "s"] if part else ["what", "told", "s"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.0f}"
        cells = [row.part, row.what, row.outcome, row.told, seconds] if part else [row.what, row.told, seconds]
        lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return lines
