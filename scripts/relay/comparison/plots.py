"""The report's plots of a row for each setting (speed, memory, time to an accuracy), and of losses, as SVG elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from relay.comparison.columns import speed_in_unit, unit_of
from relay.comparison.drawing import (
    FIGURES,
    MUTED,
    below,
    colour_of,
    figure_of,
    in_rows,
    marker_of,
    named,
    repeats_drawn,
    room_for,
    styled,
    svg_of,
    time_unit,
    titled,
)
from relay.comparison.measured import SettingResult
from relay.comparison.needed import MEBIBYTE
from relay.comparison.quality import Goal, quality, seconds_to
from relay.comparison.statistics import geometric_mean
from relay.spec.run import Run

Curve = tuple[list[float], list[float]]  # epochs, and values
Drawn = tuple[SettingResult, list[Curve]]


def speed_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """Speed (geometric mean, 95 % interval) beside the first metric or test loss, as SVG; None without any speed.

    Small dots are repeats. Struck-out settings have a cross, partly failed ones a hollow dot. `name` must be unique on
    the page, because the ids of the plot's parts begin with it.
    """
    timed = [setting for setting in settings if setting.row["samples_per_second"]]
    if not timed:
        return None
    measure = quality(each.row for each in timed)
    with styled(name):
        figure = figure_of(0.75 + 0.5 * len(timed), left=0.1, bottom=0.5, top=0.1)
        speed, learnt = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        figure.subplots_adjust(wspace=0.1)
        speeds = [[value * each.run.task.units_per_sample for value in each.speeds] for each in timed]
        end = room_for(value for each in speeds for value in each)
        for place, (setting, values) in enumerate(zip(timed, speeds, strict=True)):
            _interval(speed, place, setting, end)
            _marked(speed, place, setting, values, speed_in_unit(setting.row))
            named(speed, place, setting.name + setting.mark)
        for place, setting in enumerate(timed):
            figures = [summary.get(measure.column) for summary in setting.summaries]
            repeats = [measure.factor * value for value in figures if value is not None]
            _marked(learnt, place, setting, repeats, measure.factor * setting.row[measure.column] if repeats else None)
        speed.set_xlim(0, end)
        speed.set_xlabel(f"{unit_of(setting.row for setting in timed)} per second")
        learnt.set_xlabel(measure.label)
        for axes in (speed, learnt):
            in_rows(axes, len(timed))
        speed.xaxis.set_major_formatter(FIGURES)
        return svg_of(figure, name)


def _interval(axes: Axes, place: int, setting: SettingResult, end: float) -> None:
    """The speed's interval up to the `end` of the axis, cut there with an arrow."""
    low, high = (speed_in_unit(setting.row, part) for part in ("_low", "_high"))
    if low is not None:
        colour = colour_of(setting)
        axes.plot([low, min(high, end)], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot([low], [place], color=colour, linestyle="none", marker="|", markersize=7)
        last = "|" if high <= end else ">"
        axes.plot([min(high, end)], [place], color=colour, linestyle="none", marker=last, markersize=7, clip_on=False)


def _marked(axes: Axes, place: float, setting: SettingResult, repeats: Sequence[float], value: float | None) -> None:
    """Small dots for the repeats, and a mark above them for the setting."""
    axes.plot(repeats, [place + 0.16] * len(repeats), linestyle="none", marker="o", markersize=2, color=MUTED)
    if value is not None:
        axes.plot([value], [place], linestyle="none", **marker_of(setting))


def memory_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """Peak memory of the process, or device, that used most, as SVG; None where none was recorded."""
    drawn = [setting for setting in settings if setting.row["peak_memory_bytes"]]
    if not drawn:
        return None
    with styled(name):
        figure = figure_of(0.75 + 0.42 * len(drawn), left=0.1, bottom=0.5, top=0.1)
        axes = figure.subplots()
        for place, setting in enumerate(drawn):
            size = setting.row["peak_memory_bytes"] / MEBIBYTE
            axes.barh([place + 0.1], [size], height=0.3, color=colour_of(setting), alpha=0.85)
            named(axes, place, setting.name + setting.mark)
        axes.set_xlabel("peak memory of a process, or of a GPU (MiB)")
        in_rows(axes, len(drawn))
        return svg_of(figure, name)


def time_plot(settings: Sequence[SettingResult], accuracy: float | None, name: str) -> str | None:
    """Time to an accuracy for each setting as SVG, the shortest first; None where no setting has reached it."""
    if accuracy is None:
        return None
    goal = Goal("test_accuracy", accuracy)
    done = [each for each in settings if each.category == "done"]
    times = [(each, [time for record in each.records if (time := seconds_to(record, goal))]) for each in done]
    drawn = sorted((pair for pair in times if pair[1]), key=lambda pair: geometric_mean(pair[1]).value)
    if not drawn:
        return None
    length, unit = time_unit(max(max(seconds) for _, seconds in drawn))
    with styled(name):
        figure = figure_of(0.75 + 0.42 * len(drawn), left=0.1, bottom=0.5, top=0.1)
        axes = figure.subplots()
        for place, (setting, seconds) in enumerate(drawn):
            missing = len(setting.records) - len(seconds)
            note = f" – {missing} of {len(setting.records)} repeats did not reach it" if missing else ""
            values = [value / length for value in seconds]
            _marked(axes, place + 0.04, setting, values, None)
            hollow = {"markerfacecolor": "none"} if missing else {}
            axes.plot([geometric_mean(values).value], [place + 0.05], linestyle="none", **marker_of(setting) | hollow)
            named(axes, place, setting.name + note)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{unit} of training to a test accuracy of {100 * accuracy:.3g} %")
        in_rows(axes, len(drawn))
        return svg_of(figure, name)


def loss_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """Training loss over epochs as SVG; None without losses."""

    def curve(run: Run, summary: Mapping[str, Any]) -> Curve:
        losses = summary["losses"]
        return [step / run.length.steps_per_epoch for step in losses.get("steps", ())], losses.get("values", [])

    drawn = _curves(settings, curve)
    finite = [loss for _, curves in drawn for _, values in curves for loss in values if not math.isnan(loss)]
    decades = math.log10(max(finite) / min(finite)) if finite and min(finite) > 0 and max(finite) < math.inf else None
    return _panels(drawn, "training loss", name, repeats_drawn(settings), decades, alpha=0.8)


def quality_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """The task's first metric, or test loss, over epochs as SVG; None without any."""
    measure = quality(each.row for each in settings)

    def curve(run: Run, summary: Mapping[str, Any]) -> Curve:
        pairs = [(e["step"], value) for e in summary["evaluations"] if (value := measure.evaluated(e)) is not None]
        return [step / run.length.steps_per_epoch for step, _ in pairs], [measure.factor * value for _, value in pairs]

    drawn = _curves(settings, curve)
    return _panels(drawn, measure.label, name, repeats_drawn(settings), None, marker=".", markersize=3)


def _curves(settings: Sequence[SettingResult], curve: Callable[[Run, Mapping[str, Any]], Curve]) -> list[Drawn]:
    """The settings of whose finished repeats there are curves, with these."""
    drawn = []
    for each in settings:
        curves = [curve(record.run, record.summary) for record in each.records if record.summary]
        if filled := [points for points in curves if points[1]]:
            drawn.append((each, filled))
    return drawn


def _panels(drawn: Sequence[Drawn], label: str, name: str, most: int, decades: float | None, **line: Any) -> str | None:
    """A panel for each setting and a line for each repeat, of which `most` are drawn; None where nothing is.

    All panels share their axes. In grey behind is a repeat of the same training in one process. With `decades`, over
    which the values reach, the vertical axis is logarithmic.
    """
    if not drawn:
        return None
    with styled(name):
        lines = math.ceil(len(drawn) / 2)
        figure = figure_of(0.5 + 1.55 * lines, left=0.8, bottom=0.5, top=0.35)
        panels = list(figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False).flat)
        figure.subplots_adjust(wspace=0.08, hspace=0.42)
        for (setting, curves), panel in zip(drawn, panels, strict=False):
            other = behind(setting, [each for each, _ in drawn])
            for first in [its[0] for each, its in drawn if each is other]:
                panel.plot(*first, color=MUTED, linewidth=0.6, alpha=0.45)
            for curve in curves[:most]:
                panel.plot(*curve, color=colour_of(setting), linewidth=0.9, **line)
            titled(panel, setting.name + setting.mark)
            panel.grid(axis="y")
            if decades is not None:
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter("{x:g}")
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.5 else (1,)))
                panel.yaxis.set_minor_locator(NullLocator())
        if len(drawn) % 2 and len(drawn) > 1:
            panels[len(drawn) - 2].tick_params(labelbottom=True)  # there is none below this one
        for panel in panels[len(drawn) :]:
            panel.set_axis_off()
        below(figure, "steps" if drawn[0][0].run.strategy.script else "epochs")
        figure.supylabel(label, fontsize=9, color=MUTED, x=0.01)
        return svg_of(figure, name)


def behind(setting: SettingResult, settings: Sequence[SettingResult]) -> SettingResult | None:
    """The setting whose curve lies behind this one's: the same training in one process, and in fp32.

    Where none was measured, the first setting that trains the same, else the first of all; None where that is itself.
    """

    def trains(each: SettingResult) -> tuple[Any, ...]:
        run = each.run
        return run.batch.global_batch_size, run.task.learning_rate, repr(run.optimization), run.length.epochs

    alike = [each for each in settings if trains(each) == trains(setting)]
    plain = [each for each in alike if each.run.shape.world_size == 1 and each.run.computation.precision == "fp32"]
    nearest = (plain or alike or list(settings))[0]
    return None if nearest is setting else nearest
