"""The report's pictures, a function each: a figure, or None where there is nothing to draw."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from relay.base.grouped import grouped
from relay.comparison import drawing
from relay.comparison.answer import Answer
from relay.comparison.columns import Row, speed_in_unit
from relay.comparison.setting_result import Goal, SettingResult, quality, seconds_to, stated_accuracy
from relay.comparison.statistics import geometric_mean
from relay.run_folder.summary import Summary

Curve = tuple[list[float], list[float]]  # epochs, and values
# The parts of a step's time by their columns, in words.
OF_A_STEP = {
    "step_compute_fraction": "compute",
    "step_communication_fraction": "exposed communication",
    "step_optimizer_fraction": "optimizer",
    "step_data_fraction": "waiting for data",
    "step_no_cpu_fraction": "ready, no CPU free",
    "step_idle_fraction": "idle GPU",
}
MARKERS = "osD^vP"  # a line is told by its marker and by its label, not by its colour


def pictures(
    settings: Sequence[SettingResult], scaled: Sequence[Row], answer: Answer, place: int, target: float | None
) -> dict[str, str]:
    """The SVG of every picture of an answer that has anything to show, by its name.

    The first `MOST_SETTINGS` of the settings are drawn. `scaled` are `scaling_rows`. `place` is the answer's among all.
    `target` is the accuracy that the config states.
    """
    accuracy, settings = stated_accuracy(settings, target), settings[: drawing.MOST_SETTINGS]
    figures = {
        "speed": partial(speed, settings, answer.unit),
        "scaling": partial(scaling, scaled),
        "time": partial(time_to, settings, accuracy),
        "learnt": partial(learnt, settings),
        "step": partial(steps, settings),
    }
    return {name: svg for name, figure in figures.items() if (svg := drawing.drawn(figure, f"{name}-{place}"))}


def speed(settings: Sequence[SettingResult], unit: str) -> Figure | None:
    """Speeds with their intervals, beside what was learnt: the first metric, or the test loss."""
    timed = [setting for setting in settings if setting.row["samples_per_second"]]
    if not timed:
        return None
    measure = quality(each.row for each in timed)
    figure = drawing.figure_of(0.75 + 0.5 * len(timed))
    speeds, results = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    figure.subplots_adjust(wspace=0.1)
    for place, setting in enumerate(timed):
        ends = [speed_in_unit(setting.row, part) for part in ("_low", "_high")]
        if None not in ends:
            speeds.plot(ends, [place] * 2, color=drawing.colour_of(setting), linewidth=1.2, marker="|", markersize=6)
        _marked(speeds, place, setting, [value * setting.run.task.units_per_sample for value in setting.speeds],
                speed_in_unit(setting.row))  # fmt: skip
        qualities = [getattr(summary, measure.column) for summary in setting.summaries]
        repeats = [measure.factor * value for value in qualities if value is not None]
        _marked(results, place, setting, repeats, measure.factor * setting.row[measure.column] if repeats else None)
        drawing.named(speeds, place, setting.name + setting.mark)
    fastest = max(speed * each.run.task.units_per_sample for each in timed for speed in each.speeds)
    speeds.set_xlim(0, drawing.ROOM * fastest)
    speeds.xaxis.set_major_formatter(drawing.FIGURES)
    speeds.set_xlabel(f"{unit} per second")
    results.set_xlabel(measure.label)
    for axes in (speeds, results):
        drawing.in_rows(axes, len(timed))
    return figure


def _marked(axes: Axes, place: float, setting: SettingResult, repeats: Sequence[float], value: float | None) -> None:
    """Small dots for the repeats, and a mark above them for the setting."""
    axes.plot(repeats, [place + 0.16] * len(repeats), linestyle="none", marker="o", markersize=2, color=drawing.MUTED)
    if value is not None:
        axes.plot([value], [place], **drawing.marker_of(setting))


def time_to(settings: Sequence[SettingResult], accuracy: float | None) -> Figure | None:
    """The time to an accuracy, the shortest first; hollow where not all repeats have reached it."""
    if accuracy is None:
        return None
    goal = Goal("test_accuracy", accuracy)
    done = [each for each in settings if each.category == "done"]
    times = [(each, [time for repeat in each.repeats if (time := seconds_to(repeat, goal))]) for each in done]
    reached = sorted((pair for pair in times if pair[1]), key=lambda pair: geometric_mean(pair[1]).value)
    if not reached:
        return None
    longest = max(max(seconds) for _, seconds in reached)
    length, unit = next((each for each in drawing.UNITS if longest >= 2 * each[0]), drawing.UNITS[-1])
    figure = drawing.figure_of(0.75 + 0.42 * len(reached))
    axes = figure.subplots()
    for place, (setting, seconds) in enumerate(reached):
        missing = len(setting.repeats) - len(seconds)
        values = [value / length for value in seconds]
        _marked(axes, place + 0.04, setting, values, None)
        hollow = {"markerfacecolor": "none"} if missing else {}
        axes.plot([geometric_mean(values).value], [place + 0.05], **drawing.marker_of(setting) | hollow)
        note = f" – {missing} of {len(setting.repeats)} repeats did not reach it" if missing else ""
        drawing.named(axes, place, setting.name + note)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} of training to {goal}")
    drawing.in_rows(axes, len(reached))
    return figure


def learnt(settings: Sequence[SettingResult]) -> Figure | None:
    """The first metric, or the test loss, over epochs; where nothing was evaluated, the training loss.

    There is a panel for each setting, with a line for each repeat. All panels share their axes.
    """
    measure = quality(each.row for each in settings)

    def curves_of(setting: SettingResult, of: Callable[[Summary], list[tuple[int, float]]]) -> list[Curve]:
        """The repeats' curves over epochs; nothing of those without a point."""
        points = [(each.run.length.steps_per_epoch, of(each.summary)) for each in setting.repeats if each.summary]
        return [([step / epoch for step, _ in its], [value for _, value in its]) for epoch, its in points if its]

    def evaluated(summary: Summary) -> list[tuple[int, float]]:
        values = [(each["step"], measure.evaluated(each)) for each in summary.evaluations]
        return [(step, measure.factor * value) for step, value in values if value is not None]

    def trained(summary: Summary) -> list[tuple[int, float]]:
        return [*zip(summary.losses.steps, summary.losses.values, strict=True)]

    shown, losses = ([(each, its) for each in settings if (its := curves_of(each, of))] for of in (evaluated, trained))
    label, marker = measure.label, "."
    if len(shown) < len(losses):  # not all were evaluated
        shown, label, marker = losses, "training loss", ""  # of very many steps
    if not shown:
        return None
    lines = math.ceil(len(shown) / 2)
    titles = [drawing.title(setting.name + setting.mark) for setting, _ in shown]
    above = 0.125 * max(text.count("\n") + 1 for text in titles)  # inches of the highest title
    figure = drawing.figure_of(0.5 + (1.3 + above) * lines, left=0.8, top=0.1 + above)
    panels = list(figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False).flat)
    figure.subplots_adjust(wspace=0.08, hspace=0.17 + above)
    for (setting, curves), text, panel in zip(shown, titles, panels, strict=False):
        for curve in curves[: drawing.repeats_drawn(settings)]:
            panel.plot(*curve, color=drawing.colour_of(setting), linewidth=0.9, marker=marker, markersize=3)
        panel.set_title(text, color=drawing.INK)
        panel.grid(axis="y")
    if len(shown) % 2 and len(shown) > 1:
        panels[len(shown) - 2].tick_params(labelbottom=True)  # there is none below this one
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    over = "steps" if shown[0][0].run.strategy.script else "epochs"
    figure.supxlabel(over, fontsize=9, color=drawing.MUTED, y=0.04 / figure.get_figheight(), va="bottom")
    figure.supylabel(label, fontsize=9, color=drawing.MUTED, x=0.01)
    return figure


def steps(settings: Sequence[SettingResult]) -> Figure | None:
    """What a sample's time goes to: a bar for each setting, of its parts one after the other, with their shares."""
    observed = [each for each in settings if each.speeds and each.row["step_compute_fraction"] is not None]
    if not observed:
        return None
    figure = drawing.figure_of(1.1 + 0.44 * len(observed), bottom=0.85, top=0.05)
    axes = figure.subplots()
    longest = max(1e6 / each.row["samples_per_second"] for each in observed)
    shown = [part for part in OF_A_STEP if any(each.row[part] for each in observed)]
    colours = dict(zip(OF_A_STEP, drawing.PARTS, strict=False))
    for place, setting in enumerate(observed):
        drawing.named(axes, 1.8 * place + 0.25, setting.name + setting.mark)
        amounts = {part: 1e6 / setting.row["samples_per_second"] * (setting.row[part] or 0.0) for part in OF_A_STEP}
        left, whole, at = 0.0, sum(amounts.values()), 1.8 * place + 0.8
        for part in shown:
            width = amounts[part]
            axes.barh([at], [width], left=left, height=0.62, color=colours[part], edgecolor=drawing.LINE, linewidth=0.4)
            if width >= drawing.LEAST_LABEL * longest:
                share = f"{100 * width / whole:.0f} %"
                axes.text(left + width / 2, at, share, fontsize=6.5, color=drawing.ON_PARTS, ha="center", va="center")
            left += width
    drawing.in_rows(axes, 1.8 * len(observed), first=-0.6)
    axes.xaxis.set_major_formatter(drawing.FIGURES)
    key = [Patch(color=colours[part], label=OF_A_STEP[part]) for part in shown]
    figure.legend(handles=key, loc="lower left", ncols=4, columnspacing=1.2, handlelength=1.2)
    axes.set_xlabel("microseconds of a step for each sample of its batch")
    return figure


def scaling(rows: Sequence[Row]) -> Figure | None:
    """Efficiency over devices, against the ideal."""
    if not rows:
        return None
    families = grouped(rows, lambda row: (row["baseline"], row["scaling"]))
    figure = drawing.figure_of(2.7 + 0.16 * len(families), left=0.5, bottom=0.5 + 0.16 * len(families), top=0.15)
    axes = figure.subplots()
    axes.plot([1, max(row["devices"] for row in rows)], [100, 100], color=drawing.MUTED, linestyle="--", linewidth=1)
    for place, members in enumerate(families.values()):
        largest, colour = members[-1], drawing.INK if place else drawing.ACCENT
        axes.plot(
            [row["devices"] for row in members], [100 * row["efficiency"] for row in members], color=colour,
            label=drawing.cut(f"{largest['strategy']}: {largest['setting']}", drawing.NAME_CHARACTERS - 6),
            marker=MARKERS[place % len(MARKERS)], markersize=5, linewidth=1,
        )  # fmt: skip
    axes.set_ylabel("efficiency (%)")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    figure.legend(loc="lower left")
    return figure
