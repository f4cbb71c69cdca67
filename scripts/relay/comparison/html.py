"""The report: one HTML file that contains everything it shows, so that it can be read without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from relay.comparison import answer_words as words
from relay.comparison.advice import Warned, warnings
from relay.comparison.answer import Answer
from relay.comparison.answer_files import recommendation
from relay.comparison.columns import Row, category, reason_title, told_speed, told_unit
from relay.comparison.inputs import Inputs, Record, log_of
from relay.comparison.libtorch import InCpp
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.pictures import accuracy_plot, axis_plot, cost_plot, memory_plot, scaling_plot
from relay.comparison.plots import loss_plot, speed_plot
from relay.comparison.refusals import proven
from relay.comparison.scaling import scaling_rows, shown
from relay.comparison.table import by_setting, versions_text
from relay.comparison.wording import MISSING, headlines, number, percent, small
from relay.spec.run import OwnBatch

TEMPLATES = Path(__file__).resolve().parents[3] / "workflow" / "report"
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Gate:
    """A verdict of the equivalence gate, and the names of the settings that share it."""

    names: Sequence[str]
    verdict: dict[str, Any]
    struck_out: bool


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
    accuracy: float | None
    hosts: str
    links: Sequence[Link]


@dataclass(frozen=True, kw_only=True)
class Section:
    """Everything that the report shows about one task. `links` are those of the settings that failed, by id."""

    task: str
    unit: str
    answer: Answer
    sentence: str
    certainty: str
    reasons: Sequence[str]
    not_measured: Sequence[str]
    block: str
    headline: str
    warnings: Sequence[Warned]
    rows: Sequence[tuple[Row, str]]
    scaling: Sequence[dict[str, str]]
    runs: Sequence[ShownRun]
    links: Mapping[str, Sequence[Link]]
    gates: Sequence[Gate]
    speed_plot: Markup | None
    loss_plot: Markup | None
    accuracy_plot: Markup | None
    memory_plot: Markup | None
    cost_plot: Markup | None
    scaling_plot: Markup | None
    batch_plot: Markup | None
    workers_plot: Markup | None


@dataclass(frozen=True)
class Report:
    """What the page is made of: the comparison's rows, its answers, models that C++ has run, the folder of results."""

    inputs: Inputs
    rows: Sequence[Row]
    answers: Sequence[Answer]
    results: Path
    in_cpp: Sequence[InCpp] = field(default_factory=list)

    def render(self) -> str:
        """The page's HTML."""
        environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = (number, percent, small, whole, words.held, category, reason_title, mebibytes, told_speed)
        environment.filters.update({function.__name__: function for function in filters})
        found = {"sections": self._sections(), "in_cpp": self.in_cpp, "method": _method(self.inputs)}
        # The script is this project's own file, so that it needs no escaping.
        script = Markup((TEMPLATES / "comparison.js").read_text(encoding="utf-8"))
        return environment.get_template("comparison.html.j2").render(**found, missing=MISSING, script=script)

    def _sections(self) -> list[Section]:
        results = setting_results(self.inputs, self.rows)
        return [
            self._section(place, answer, [each for each in results if each.row["task"] == answer.task])
            for place, answer in enumerate(self.answers)
        ]

    def _section(self, place: int, answer: Answer, results: Sequence[SettingResult]) -> Section:
        rows = [each.row for each in results]
        planned = [each for each in results if each.records]
        found = recommendation(answer, self.results)
        return Section(
            task=answer.task,
            unit=told_unit(rows),
            answer=answer,
            sentence=words.sentence(answer),
            certainty=words.certainty(answer),
            reasons=words.reasons(answer),
            not_measured=words.not_measured(answer),
            block=found.script.block if found else "",
            headline=headlines(rows)[0],
            warnings=warnings(planned),
            rows=[(each.row, each.label) for each in results],
            scaling=[shown(row) for row in scaling_rows(rows)],
            runs=[self._run(record, rows) for each in planned for record in each.records],
            links={each.row["setting"]: self._of_failed(each) for each in planned},
            gates=_gates(planned),
            **_pictures(planned, answer, place),
        )

    def _run(self, record: Record, rows: Sequence[Row]) -> ShownRun:
        row = next(row for row in rows if row["setting"] == record.run.setting_id)
        per_sample = told_speed(row) / row["samples_per_second"] if row["samples_per_second"] else 1
        summary = record.summary or {}
        return ShownRun(
            record.run.id,
            record.run.repeat,
            record.speed * per_sample if record.speed else None,
            summary.get("test_accuracy"),
            ", ".join(summary.get("hosts", [])) or MISSING,
            self._links(record),
        )

    def _links(self, record: Record) -> list[Link]:
        """The files of a run that are there, relative to the report."""
        folder = self.results / "runs" / record.run.id
        files = {"specification": folder / "run.json", "record": folder / "summary.json"}
        logs = sorted((self.results / "logs" / "segment" / record.run.id).glob("*.log"), key=_newest)
        files["log"] = logs[-1] if logs else log_of(record.run.id, self.results)
        return [
            Link(path.relative_to(self.results).as_posix(), text)
            for text, path in files.items()
            if path.is_file() and path.is_relative_to(self.results)
        ]

    def _of_failed(self, setting: SettingResult) -> list[Link]:
        """The logs of the repeats that failed, and the verdict of the gate that strikes a setting out."""
        verdict = self.results / "equivalence" / "gates" / setting.row["gate"] / "verdict.json"
        refused = setting.row["equivalent"] is False and verdict.is_file()
        links = [Link(verdict.relative_to(self.results).as_posix(), "the gate's verdict")] if refused else []
        for record in setting.records:
            if not record.summary:
                logs = [link.href for link in self._links(record) if link.text == "log"]
                links += [Link(href, f"log of repeat {record.run.repeat}") for href in logs]
        return links


def _newest(path: Path) -> float:
    return path.stat().st_mtime


def _pictures(results: Sequence[SettingResult], answer: Answer, place: int) -> dict[str, Markup | None]:
    """All plots of a task, by their names in a section."""
    drawn = {
        "speed_plot": speed_plot(results, f"speed-{place}"),
        "loss_plot": loss_plot(results, f"loss-{place}"),
        "accuracy_plot": accuracy_plot(results, f"accuracy-{place}"),
        "memory_plot": memory_plot(results, f"memory-{place}"),
        "cost_plot": cost_plot(answer.candidates, f"cost-{place}"),
        "scaling_plot": scaling_plot(scaling_rows([each.row for each in results]), f"scaling-{place}"),
        "batch_plot": axis_plot(results, "global_batch_size", "samples per step", answer.unit, f"batch-{place}"),
        "workers_plot": axis_plot(results, "data_workers", "data workers", answer.unit, f"workers-{place}"),
    }
    # Markup is safe here, because matplotlib escapes the text in its SVG.
    return {name: Markup(svg) if svg else None for name, svg in drawn.items()}


def mebibytes(value: int | None) -> str:
    """Bytes as MiB."""
    return MISSING if value is None else number(value / MEBIBYTE)


def whole(value: float) -> str:
    """A number with all its digits and thousands separated, such as '32' or '247,400'."""
    return f"{value:,.10g}"


def _gates(results: Sequence[SettingResult]) -> list[Gate]:
    """Every verdict once, with the settings that share it. Verdicts that strike a setting out come first."""
    names: dict[tuple[str, OwnBatch], list[SettingResult]] = {}
    for setting in results:
        if proven(setting.records):  # else the verdict would be that of something else
            own = OwnBatch.of(setting.records[0].run)  # the verdict has parts of its own for each batch size
            names.setdefault((setting.row["gate"], own), []).append(setting)
    gates = []
    for members in names.values():
        verdict = members[0].records[0].verdict
        if verdict:
            struck_out = any(not member.row["equivalent"] for member in members)
            gates.append(Gate([member.name for member in members], verdict, struck_out))
    return sorted(gates, key=lambda gate: not gate.struck_out)


def _method(inputs: Inputs) -> dict[str, Any]:
    """How the runs were measured, from their own records."""
    summaries = [record.summary for record in inputs.records if record.summary]
    return {
        "runs": len(inputs.records),
        "finished": len(summaries),
        "repeats": _range(len(group) for group in by_setting(inputs.records).values()),
        "segments": _range(record.segments for record in inputs.records),
        "attempts": sum(summary["attempts"] for summary in summaries),
        "warmup_steps": _range(record.run.length.warmup_steps for record in inputs.records),
        "margin": inputs.margin,
        "versions": sorted({versions_text(summary["versions"]) for summary in summaries}),
        "variables": sorted({record.run.place.variables for record in inputs.records} - {""}),
        "devices": sorted({str(summary["device_name"]) for summary in summaries}),
        "hosts": sorted({str(host) for summary in summaries for host in summary["hosts"]}),
        "codes": sorted({str(summary["code"])[:12] for summary in summaries}),
        "dates": sorted(str(summary["started_at"]) for summary in summaries if summary.get("started_at")),
    }


def _range(values: Any) -> str:
    known = sorted(set(values))
    if not known:
        return MISSING
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
