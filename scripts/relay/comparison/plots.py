"""The report's plots of speed, accuracy and loss, as SVG elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from relay.comparison.columns import told_speed, told_unit
from relay.comparison.drawing import (
    MUTED,
    below,
    colour_of,
    figure_of,
    marker_of,
    named,
    repeats_drawn,
    room_for,
    styled,
    svg_of,
    titled,
)
from relay.comparison.learning import behind
from relay.comparison.measured import SettingResult
from relay.comparison.quality import Quality, quality


def speed_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """Speed (geometric mean, 95 % interval) beside the first metric or test loss, as SVG; None without any speed.

    Small dots are repeats. Struck-out settings have a cross, partly failed ones a hollow dot. `name` must be unique on
    the page, because the ids of the plot's parts begin with it.
    """
    timed = [setting for setting in settings if setting.row["samples_per_second"]]
    if not timed:
        return None
    with styled(name):
        figure = figure_of(0.75 + 0.5 * len(timed), left=0.1, bottom=0.5, top=0.1)
        speed, learnt = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        figure.subplots_adjust(wspace=0.1)
        end = room_for(value for each in timed for value in _speeds(each))
        for place, setting in enumerate(timed):
            _speed(speed, place, setting, end)
        measure = quality(setting.row for setting in timed)
        for place, setting in enumerate(timed):
            _quality(learnt, place, setting, measure)
        speed.set_xlim(0, end)
        speed.set_xlabel(f"{told_unit(setting.row for setting in timed)} per second")
        learnt.set_xlabel(measure.label)
        speed.set_ylim(len(timed) - 0.5, -0.75)
        for axes in (speed, learnt):
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.grid(axis="x")
            axes.locator_params(axis="x", nbins=4)
        speed.xaxis.set_major_formatter(lambda value, position: f"{value:,.10g}")
        return svg_of(figure, name)


def loss_plot(settings: Sequence[SettingResult], name: str) -> str | None:
    """Training loss over epochs as SVG, with a panel for each setting and a line for each repeat; None without losses.

    All panels share their axes. In grey behind is a repeat of the same training in one process (`learning.behind`).
    """
    drawn = [(setting, curves) for setting in settings if (curves := list(_curves(setting)))]
    if not drawn:
        return None
    losses = [loss for _, curves in drawn for _, values in curves for loss in values]
    finite = [loss for loss in losses if not math.isnan(loss)]
    logarithmic = bool(finite) and min(finite) > 0 and max(finite) < math.inf
    decades = math.log10(max(finite) / min(finite)) if logarithmic else 0
    with styled(name):
        lines = math.ceil(len(drawn) / 2)
        figure = figure_of(0.5 + 1.55 * lines, left=0.8, bottom=0.5, top=0.35)
        panels = figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False).flat
        figure.subplots_adjust(wspace=0.08, hspace=0.42)
        for place, ((setting, curves), panel) in enumerate(zip(drawn, panels, strict=False)):
            if (other := behind(setting, [each for each, _ in drawn])) is not None:
                first = next(curves[0] for each, curves in drawn if each is other)
                panel.plot(*first, color=MUTED, linewidth=0.6, alpha=0.45)
            for curve in curves[: repeats_drawn(settings)]:
                panel.plot(*curve, color=colour_of(setting), linewidth=0.9, alpha=0.8)
            titled(panel, setting.name + setting.mark)
            panel.grid(axis="y")
            if logarithmic:
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(lambda value, position: f"{value:g}")
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 1.5 else (1,)))
                panel.yaxis.set_minor_locator(NullLocator())
            if place == len(drawn) - 2:
                panel.tick_params(labelbottom=True)  # with an odd number of panels, there is none below this one
        for panel in panels:
            panel.set_axis_off()
        below(figure, "steps" if drawn[0][0].run.strategy.script else "epochs")
        figure.supylabel("training loss", fontsize=9, color=MUTED, x=0.01)
        return svg_of(figure, name)


def _speeds(setting: SettingResult) -> list[float]:
    """The repeats' speeds, in the task's unit per second."""
    return [speed * record.run.task.units_per_sample for record in setting.records if (speed := record.speed)]


def _speed(axes: Axes, place: int, setting: SettingResult, end: float) -> None:
    """The speed's mark, its interval up to the `end` of the axis (cut there, with an arrow), and the repeats."""
    row, colour = setting.row, colour_of(setting)
    low, high, value = (told_speed(row, part) for part in ("_low", "_high", ""))
    if low is not None:
        axes.plot([low, min(high, end)], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot([low], [place], color=colour, linestyle="none", marker="|", markersize=7)
        last = "|" if high <= end else ">"
        axes.plot([min(high, end)], [place], color=colour, linestyle="none", marker=last, markersize=7, clip_on=False)
    repeats = _speeds(setting)
    axes.plot(repeats, [place + 0.16] * len(repeats), linestyle="none", marker="o", markersize=2, color=MUTED)
    axes.plot([value], [place], linestyle="none", **marker_of(setting, colour))
    named(axes, place, setting.name + setting.mark)


def _quality(axes: Axes, place: int, setting: SettingResult, measure: Quality) -> None:
    measured = [record.summary.get(measure.column) for record in setting.records if record.summary]
    values = [measure.factor * value for value in measured if value is not None]
    axes.plot(values, [place + 0.16] * len(values), linestyle="none", marker="o", markersize=2, color=MUTED)
    if values:
        mean = measure.factor * setting.row[measure.column]
        axes.plot([mean], [place], linestyle="none", **marker_of(setting, colour_of(setting)))


def _curves(setting: SettingResult) -> Iterator[tuple[list[float], list[float]]]:
    for record in setting.records:
        losses = record.summary["losses"] if record.summary else {}
        if losses.get("values"):
            yield [step / record.run.length.steps_per_epoch for step in losses["steps"]], losses["values"]
