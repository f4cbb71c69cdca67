"""The report: one HTML file that contains everything it shows, so that it can be read without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from relay.base.errors import UserError
from relay.comparison.columns import Row, category, reason_title, told_speed, told_unit
from relay.comparison.inputs import Inputs, Record
from relay.comparison.libtorch import InCpp
from relay.comparison.plots import Plotted, loss_plot, speed_plot
from relay.comparison.refusals import proven
from relay.comparison.table import by_setting, versions_text
from relay.comparison.wording import MISSING, headlines, number, percent, small
from relay.spec import requirements
from relay.spec.labels import setting_labels
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
class Section:
    """Everything that the report shows about one task."""

    task: str
    unit: str
    headline: str
    rows: Sequence[tuple[Row, str]]
    speed_plot: Markup | None
    loss_plot: Markup | None
    gates: Sequence[Gate]
    only_on_cpu: Sequence[str]


def report(inputs: Inputs, rows: Sequence[Row], in_cpp: Sequence[InCpp] = ()) -> str:
    """The report's HTML. `rows` are those of `comparison_rows(inputs)`, `in_cpp` the models that C++ has run."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, percent, small, whole, category, reason_title, mebibytes, told_speed)
    environment.filters.update({function.__name__: function for function in filters})
    template = environment.get_template("comparison.html.j2")
    found = {"sections": _sections(inputs, rows), "in_cpp": in_cpp, "method": _method(inputs)}
    return template.render(**found, missing=MISSING)


def mebibytes(value: int | None) -> str:
    """Bytes as MiB."""
    return MISSING if value is None else number(value / MEBIBYTE)


def whole(value: float) -> str:
    """A number with all its digits and thousands separated, such as '32' or '247,400'."""
    return f"{value:,.10g}"


def _sections(inputs: Inputs, rows: Sequence[Row]) -> list[Section]:
    labels = {id(row): label for row, label in zip(rows, setting_labels(rows), strict=True)}
    groups = by_setting(inputs.records)
    sections = []
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for index, task in enumerate(tasks):
        task_rows = [row for row in rows if row["task"] == task]
        plotted = [
            Plotted(row, f"{row['strategy']}: {labels[id(row)]}", groups[row["setting"]])
            for row in task_rows
            if row["status"] != "skipped"
        ]
        # Markup is safe here, because matplotlib escapes the text in its SVG.
        speed, loss = speed_plot(plotted, f"speed-{index}"), loss_plot(plotted, f"loss-{index}")
        sections.append(
            Section(
                task=task,
                unit=told_unit(task_rows),
                headline=headlines(task_rows)[0],
                rows=[(row, labels[id(row)]) for row in task_rows],
                speed_plot=Markup(speed) if speed else None,
                loss_plot=Markup(loss) if loss else None,
                gates=_gates(plotted),
                only_on_cpu=_only_on_cpu(plotted),
            )
        )
    return sections


def _gates(plotted: Sequence[Plotted]) -> list[Gate]:
    """Every verdict once, with the settings that share it. Verdicts that strike a setting out come first."""
    names: dict[tuple[str, OwnBatch], list[Plotted]] = {}
    for setting in plotted:
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


def _only_on_cpu(plotted: Sequence[Plotted]) -> list[str]:
    """Strategies that also work on GPUs, but were measured on CPUs only."""
    measured = [setting for setting in plotted if setting.row["samples_per_second"]]
    on_gpus = {setting.row["strategy"] for setting in measured if setting.row["device"] != "cpu"}
    only = {setting.row["strategy"] for setting in measured if _made_for_gpus(setting.records[0])} - on_gpus
    return sorted(only)


def _made_for_gpus(record: Record) -> bool:
    try:
        return "cuda" in requirements.read(Path(record.run.strategy.file)).devices
    except (OSError, SyntaxError, UserError):
        return True  # the strategy's file is gone; the report then says that no GPU was timed, to be safe


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
