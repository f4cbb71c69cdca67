"""The report's pictures of speed over something: over devices, or over the values of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from relay.base.grouped import grouped
from relay.comparison.columns import Row, speed_in_unit
from relay.comparison.drawing import ACCENT, FIGURES, INK, MUTED, figure_of, interval, key_below, room_for
from relay.comparison.setting_result import SettingResult

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
