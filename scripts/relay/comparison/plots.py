"""The report's pictures of one quantity over another: speed over devices or an axis, and time against cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from relay.base.grouped import grouped
from relay.comparison.candidates import Candidate
from relay.comparison.columns import Row, speed_in_unit
from relay.comparison.drawing import (
    ACCENT,
    FIGURES,
    INK,
    MUTED,
    NAME_SIZE,
    cut,
    figure_of,
    interval,
    key_below,
    room_for,
)
from relay.comparison.setting_result import SettingResult

BESIDE = ((9.0, 6.0), (-9.0, 6.0), (9.0, -7.0), (-9.0, -7.0), (0.0, 11.0), (0.0, -11.0), (14.0, 0.0), (-14.0, 0.0))
CLEAR = 14.0  # between two numbers, or a number and a mark, in 1/72 inch
WIDE = 8  # costs that differ by more are drawn by their logarithms
MARKERS = "osD^vP"  # a line is told by its marker and by its label, not by its colour
# What follows from an axis, by its column.
FOLLOWS = {
    "global_batch_size": ("steps_per_epoch", "total_steps", "evaluate_every_steps", "learning_rate_scaling"),
    "cpus_per_task": ("threads",),
}


def scaling(rows: Sequence[Row]) -> Figure | None:
    """Speed-up and efficiency over devices, against the ideal."""
    if not rows:
        return None
    families = grouped(rows, lambda row: (row["baseline"], row["scaling"]))
    figure = figure_of(2.7 + 0.16 * len(families), left=0.5, bottom=0.5 + 0.16 * len(families), top=0.15)
    speed_up, efficiency = figure.subplots(1, 2)
    figure.subplots_adjust(wspace=0.25)
    most = max(row["devices"] for row in rows)
    speed_up.plot([1, most], [1, most], color=MUTED, linestyle="--", linewidth=1)
    efficiency.plot([1, most], [100, 100], color=MUTED, linestyle="--", linewidth=1)
    for place, members in enumerate(families.values()):
        counts, base, largest = [row["devices"] for row in members], members[0]["devices"], members[-1]
        label = f"{largest['strategy']}: {largest['setting']}"
        speed_up.plot(counts, [base * row["speed_up"] for row in members], label=label, **_line(place))
        efficiency.plot(counts, [100 * row["efficiency"] for row in members], **_line(place))
    for axes, label in ((speed_up, "speed-up"), (efficiency, "efficiency (%)")):
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("devices")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
    key_below(figure)
    return figure


def _line(place: int) -> dict[str, Any]:
    colour = ACCENT if place == 0 else INK
    return {"marker": MARKERS[place % len(MARKERS)], "markersize": 5, "linewidth": 1, "color": colour}


def cost(candidates: Sequence[Candidate]) -> Figure | None:
    """Seconds of an epoch against what it costs, with the Pareto front; number 1 is recommended."""
    if len(candidates) < 2:
        return None
    points = [(each.seconds_per_piece.value * each.cost, each.seconds_per_piece.value) for each in candidates]
    front = sorted(p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points))
    plot_inches = 2.6 + 0.05 * max(0, len(candidates) - 10)  # many points need more room
    figure = figure_of(plot_inches + 0.16 * len(candidates), left=0.65, bottom=0.55 + 0.16 * len(candidates), top=0.15)
    axes = figure.subplots()
    axes.plot(*zip(*front, strict=True), color=ACCENT, linewidth=1, alpha=0.6)
    colours = [ACCENT, *[INK] * (len(candidates) - 1)]
    for point, colour in zip(points, colours, strict=True):  # before the axes' ends are set: they reach beyond all
        axes.plot(*point, marker="o", markersize=6, color=colour)
    axes.set_xlabel(f"cost of {candidates[0].piece} (seconds × CPU cores; a GPU counts as several)")
    axes.set_ylabel(f"seconds for {candidates[0].piece}")
    if max(points)[0] > WIDE * min(points)[0]:  # else the cheap ones would lie on each other
        for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            scale("log")
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FIGURES)
            axis.set_minor_locator(NullLocator())
        axes.margins(0.08)
    else:
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    axes.grid()
    offsets = _free_places(axes.transData.transform(points) * 72 / figure.dpi)
    for place, (each, colour) in enumerate(zip(candidates, colours, strict=True)):
        style: dict[str, Any] = {"color": colour, "ha": "center", "va": "center", "annotation_clip": False}
        axes.annotate(str(place + 1), points[place], offsets[place], textcoords="offset points", fontsize=8, **style)
        height = (0.06 + 0.16 * (len(candidates) - 1 - place)) / figure.get_figheight()
        label = cut(f"{place + 1}  {each.name}")
        figure.text(0.02, height, label, fontsize=NAME_SIZE, color=colour)
    return figure


def _free_places(points: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    """Where each point's number goes beside it: the first place that is clear of all else, or the clearest one.

    In 1/72 inch, as the `points` (x, y) are.
    """
    marks = [(float(x), float(y)) for x, y in points]
    taken, offsets = list(marks), []
    for mark in marks:
        others = [other for other in taken if other != mark]

        def clear(at: tuple[float, float], mark: tuple[float, float] = mark, others: Any = others) -> float:
            return min((math.dist((mark[0] + at[0], mark[1] + at[1]), other) for other in others), default=math.inf)

        offset = next((at for at in BESIDE if clear(at) > CLEAR), max(BESIDE, key=clear))
        taken.append((mark[0] + offset[0], mark[1] + offset[1]))
        offsets.append(offset)
    return offsets


def over_axis(settings: Sequence[SettingResult], column: str, label: str, unit: str) -> Figure | None:
    """Speed over the values of one axis, such as the batch size. Settings that differ in nothing else are joined.

    The values stand at equal distances, as batches and CPUs are usually doubled.
    """
    timed = [each for each in settings if each.row["samples_per_second"]]
    lines = _differing_in([each for each in timed if each.row["equivalent"] or each.row["unproven"]], column)
    if not lines:
        return None
    ticks = sorted({each.row[column] for members in lines for each in members})
    figure = figure_of(2.5 + 0.16 * len(lines), left=0.95, bottom=0.5 + 0.16 * len(lines), top=0.15)
    axes = figure.subplots()
    for place, members in enumerate(lines):
        at, speeds = [ticks.index(each.row[column]) for each in members], [speed_in_unit(x.row) for x in members]
        axes.plot(at, speeds, label=_common_name(members), **_line(place))
        for value, each in zip(at, members, strict=True):
            interval(axes, each, value, upright=True)
    axes.set_xlabel(label)
    axes.set_ylabel(f"{unit} per second")
    axes.set_ylim(0, room_for(each for members in lines for each in members))
    axes.set_xticks(range(len(ticks)), [f"{tick:,}" for tick in ticks])
    axes.set_xlim(-0.3, len(ticks) - 0.7)
    axes.yaxis.set_major_formatter(FIGURES)
    axes.grid(axis="y")
    key_below(figure)
    return figure


def _common_name(members: Sequence[SettingResult]) -> str:
    """What the names of settings have in common, such as 'ddp (4 procs, dataloader)'."""
    words = [each.label.split(", ") for each in members]
    common = [word for word in words[0] if all(word in other for other in words)]
    return f"{members[0].row['strategy']} ({', '.join(common)})" if common else str(members[0].row["strategy"])


def _differing_in(settings: Sequence[SettingResult], column: str) -> list[list[SettingResult]]:
    """Settings that differ in this column alone (and in what follows from it), in its order; at least two each.

    Data workers follow the CPUs where nothing else makes a line: one on each of them is their default.
    """
    lines = _lines(settings, column, {column, *FOLLOWS.get(column, ())})
    if column == "cpus_per_task":
        drawn = [each for members in lines for each in members]
        lone = [each for each in settings if each not in drawn]
        with_them = [each for each in lone if each.run.feeding.data_workers == each.run.shape.cpus_per_task]
        lines += _lines(with_them, column, {column, *FOLLOWS[column], "data_workers"})
    return lines


def _lines(settings: Sequence[SettingResult], column: str, left_out: set[str]) -> list[list[SettingResult]]:
    """The settings that are alike in all but what is left out, where they have several values in the column."""

    def rest(each: SettingResult) -> str:
        run = each.run
        groups = (run.shape, run.computation, run.feeding, run.batch, run.length)
        values = {name: value for group in groups for name, value in vars(group).items() if name not in left_out}
        return repr((run.strategy.name, dict(run.strategy.options), values))

    lines = [sorted(alike, key=lambda each: each.row[column]) for alike in grouped(settings, rest).values()]
    return [members for members in lines if len({each.row[column] for each in members}) > 1]
