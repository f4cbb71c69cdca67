"""The runs as the page lists them: each setting's gate, its repeats, and the files that their figures come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relay.comparison.inputs import Record
from relay.comparison.measured import SettingResult
from relay.comparison.no_result import log_of
from relay.comparison.quality import Quality
from relay.comparison.wording import MISSING


@dataclass(frozen=True)
class Link:
    """A file beside the report."""

    href: str
    text: str


@dataclass(frozen=True)
class ShownRun:
    """One run in the list of evidence. `speed` is in the task's unit, per second."""

    id: str
    repeat: int
    speed: float | None
    learnt: str
    hosts: str
    links: Sequence[Link]


@dataclass(frozen=True)
class ShownSetting:
    """A setting in the list of evidence: its identity, its name, its gate with the link to the verdict ('': none)."""

    id: str
    name: str
    gate: str
    verdict: str
    runs: Sequence[ShownRun]


def shown_setting(setting: SettingResult, learnt: Quality, results: Path) -> ShownSetting:
    runs = [_run(record, learnt, results) for record in setting.records]
    verdict = _verdict(setting, results)
    return ShownSetting(setting.row["setting"], setting.name, setting.row["gate"], verdict, runs)


def _verdict(setting: SettingResult, results: Path) -> str:
    """The link to the verdict of a setting's gate; '' where there is none."""
    path = results / "equivalence" / "gates" / setting.row["gate"] / "verdict.json"
    return path.relative_to(results).as_posix() if path.is_file() else ""


def _run(record: Record, learnt: Quality, results: Path) -> ShownRun:
    summary = record.summary or {}
    return ShownRun(
        record.run.id,
        record.run.repeat,
        record.speed * record.run.task.units_per_sample if record.speed else None,
        learnt.told(summary),
        ", ".join(summary.get("hosts", [])) or MISSING,
        _links(record, results),
    )


def _links(record: Record, results: Path) -> list[Link]:
    """The files of a run that are there, relative to the report."""
    folder = results / "runs" / record.run.id
    files = {"specification": folder / "run.json", "record": folder / "summary.json"}
    logs = sorted((results / "logs" / "segment" / record.run.id).glob("*.log"), key=_newest)
    files["log"] = logs[-1] if logs else log_of(record.run.id, results)
    return [
        Link(path.relative_to(results).as_posix(), text)
        for text, path in files.items()
        if path.is_file() and path.is_relative_to(results)
    ]


def of_failed(setting: SettingResult, results: Path) -> list[Link]:
    """The logs of the repeats that failed, and the verdict of the gate that strikes a setting out."""
    verdict = _verdict(setting, results) if setting.row["equivalent"] is False else ""
    links = [Link(verdict, "the gate's verdict")] if verdict else []
    for record in setting.records:
        if not record.summary:
            logs = [link.href for link in _links(record, results) if link.text == "log"]
            links += [Link(href, f"log of repeat {record.run.repeat + 1}") for href in logs]
    return links


def _newest(path: Path) -> float:
    return path.stat().st_mtime
