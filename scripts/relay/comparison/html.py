"""The report: one HTML file that contains everything it shows, so that it can be read without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from relay.comparison import answer_words as words
from relay.comparison.advice import warnings
from relay.comparison.answer import Answer
from relay.comparison.answer_files import recommendation
from relay.comparison.columns import Row, category, reason_title, told_speed, told_unit
from relay.comparison.drawing import repeats_drawn, standalone
from relay.comparison.evidence import evidence
from relay.comparison.grid import grids
from relay.comparison.inputs import Inputs
from relay.comparison.largest_models import LargestModel
from relay.comparison.largest_models import found as largest_models
from relay.comparison.learning import time_plot
from relay.comparison.libtorch import InCpp
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.own_script import own_script
from relay.comparison.page_words import (
    all_well,
    coded,
    how_long,
    mebibytes,
    pasted,
    together,
    went_wrong,
    whole,
)
from relay.comparison.pictures import axis_plot, cost_plot, memory_plot, quality_plot, scaling_plot
from relay.comparison.plots import loss_plot, speed_plot
from relay.comparison.quality import quality, stated_accuracy
from relay.comparison.refusals import proven
from relay.comparison.rules import rules_of
from relay.comparison.scaling import scaling_rows, shown
from relay.comparison.shown_runs import of_failed, shown_setting
from relay.comparison.time_pictures import step_plot, timeline_plot, unobserved, usage_plot
from relay.comparison.wording import MISSING, number, percent, small, standings_mean
from relay.spec.run import OwnBatch, setting_fields

TEMPLATES = Path(__file__).resolve().parents[3] / "workflow" / "report"


@dataclass(frozen=True)
class Gate:
    """A verdict of the equivalence gate, and the names of the settings that share it."""

    names: Sequence[str]
    verdict: dict[str, Any]
    struck_out: bool


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
        filters = (
            number,
            percent,
            small,
            whole,
            coded,
            category,
            reason_title,
            mebibytes,
            told_speed,
        )
        environment.filters.update({function.__name__: function for function in filters})
        found: dict[str, Any] = {"sections": self.sections, "in_cpp": self.in_cpp, "largest": self.largest}
        found["evidence"] = evidence(self.inputs, self.results)
        # The script is this project's own file, so that it needs no escaping.
        script = Markup((TEMPLATES / "comparison.js").read_text(encoding="utf-8"))
        found["standings"] = standings_mean(self.inputs.margin)
        found["least_efficiency"] = rules_of(self.inputs.margin, self.inputs.rules).least_efficiency
        found["loader"] = next(each.about.means for each in setting_fields() if each.name == "loader")
        return environment.get_template("comparison.html.j2").render(**found, missing=MISSING, script=script)

    @property
    def largest(self) -> list[LargestModel]:
        """The largest models that fit, of the settings that were searched."""
        names = {each.row["setting"]: each.name for each in setting_results(self.inputs, self.rows)}
        return largest_models(self.results, names)

    @cached_property
    def sections(self) -> list[dict[str, Any]]:
        """What the template shows of each task and its options, by its names."""
        results = setting_results(self.inputs, self.rows)
        return [
            self._section(place, answer, [each for each in results if each.row["trained"] == answer.trained])
            for place, answer in enumerate(self.answers)
        ]

    @property
    def pictures(self) -> dict[str, str]:
        """Every picture as an SVG file, by a name such as 'lenet-digits-speed'."""
        return {
            f"{section['answer'].file_name}-{name}": standalone(svg)
            for section in self.sections
            for name, svg in section["plots"].items()
            if svg
        }

    def _section(self, place: int, answer: Answer, results: Sequence[SettingResult]) -> dict[str, Any]:
        rows = [each.row for each in results]
        planned = [each for each in results if each.records]
        found, learnt = recommendation(answer, self.results), quality(rows)
        of_command = any(each.run.strategy.script for each in planned)
        epochs = answer.best.run.length.epochs if answer.best else 0
        return {
            "trained": answer.trained,
            "unit": told_unit(rows),
            "quality": learnt,
            "answer": answer,
            "sentence": words.sentence(answer),
            "in_short": words.in_short(answer),
            "certainty": words.certainty(answer),
            "why_not": words.why_not_the_fastest(answer),
            "reasons": words.reasons(answer),
            "not_measured": words.not_measured(answer),
            "block": pasted(answer, found.script) if found else "",
            "own_script": "\n".join(own_script(found.run, answer.request)) if found and answer.request else "",
            "of_command": of_command,
            "extent": "your whole command" if of_command else f"the {epochs:g} epochs of this comparison",
            "not_recommended": {each.other.name: words.not_recommended(answer, each) for each in answer.others},
            "all_well": all_well(results),
            "how_long": how_long(answer),
            "went_wrong": went_wrong(planned),
            "warnings": together(warnings(planned)),
            "rows": [(each.row, each.label) for each in results],
            "scaling": [shown(row) for row in scaling_rows(rows)],
            "grids": grids(rows),
            "runs": [shown_setting(each, learnt, self.results) for each in planned],
            "links": {each.row["setting"]: of_failed(each, self.results) for each in planned},
            "gates": _gates(planned),
            "unobserved": ", ".join(unobserved(planned)),
            "without_curves": _without_curves(planned),
            "plots": _pictures(planned, answer, place, self.inputs.config.get("target_accuracy")),
        }


def _without_curves(results: Sequence[SettingResult]) -> str:
    """Which repeats have no curve in the pictures; '' where each has one."""
    most = repeats_drawn(results)
    beyond = any(len(each.records) > most for each in results)
    return f" No more than {most} repeats of each setting are drawn." if beyond else ""


def _pictures(
    results: Sequence[SettingResult], answer: Answer, place: int, accuracy: float | None
) -> dict[str, Markup | None]:
    """All plots of a section, by their names. `accuracy` is the one to which the config asks for the time."""
    drawn = {
        "speed": speed_plot(results, f"speed-{place}"),
        "loss": loss_plot(results, f"loss-{place}"),
        "quality": quality_plot(results, f"quality-{place}"),
        "memory": memory_plot(results, f"memory-{place}"),
        "cost": cost_plot(answer.candidates, f"cost-{place}"),
        "scaling": scaling_plot(scaling_rows([each.row for each in results]), f"scaling-{place}"),
        "batch": axis_plot(results, "global_batch_size", "samples per step", answer.unit, f"batch-{place}"),
        "workers": axis_plot(results, "data_workers", "data workers per process", answer.unit, f"workers-{place}"),
        "cpus": axis_plot(results, "cpus_per_task", "CPU cores per process", answer.unit, f"cpus-{place}"),
        "time": time_plot(results, stated_accuracy(results, accuracy), f"time-{place}"),
        "step": step_plot(results, f"step-{place}"),
        "timeline": timeline_plot(results, f"timeline-{place}"),
        "usage": usage_plot(results, f"usage-{place}"),
    }
    # Markup is safe here, because matplotlib escapes the text in its SVG.
    return {name: Markup(svg) if svg else None for name, svg in drawn.items()}


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
            struck_out = any(member.row["equivalent"] is False for member in members)
            gates.append(Gate([member.name for member in members], verdict, struck_out))
    return sorted(gates, key=lambda gate: not gate.struck_out)
