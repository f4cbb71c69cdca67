"""The report's plots of scaling, of cost, and of speed over one axis, as SVG elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from relay.comparison.candidates import Candidate
from relay.comparison.columns import Row, speed_in_unit
from relay.comparison.drawing import ACCENT, FIGURES, INK, MUTED, figure_of, fitted, key_below, room_for, styled, svg_of
from relay.comparison.measured import SettingResult

CLEAR = 14.0  # between two numbers, or a number and a mark, in 1/72 inch
BESIDE = ((9.0, 6.0), (-9.0, 6.0), (9.0, -7.0), (-9.0, -7.0), (0.0, 11.0), (0.0, -11.0), (14.0, 0.0), (-14.0, 0.0))
WIDE = 8  # costs that differ by more are drawn by their logarithms
# What follows from an axis of a plot, by its column.
FOLLOWS = {
    "global_batch_size": ("steps_per_epoch", "total_steps", "evaluate_every_steps", "learning_rate_scaling"),
    "cpus_per_task": ("threads",),
}
MARKERS = "osD^vP"  # a family is told by its marker and by its label, not by its colour


def scaling_plot(rows: Sequence[Row], name: str) -> str | None:
    """Speed-up and efficiency over devices against the ideal, as SVG; None without any. `rows`: `scaling_rows`'."""
    families = _families(rows)
    if not families:
        return None
    most = max(row["devices"] for row in rows)
    with styled(name):
        figure = figure_of(2.7 + 0.16 * len(families), left=0.5, bottom=0.5 + 0.16 * len(families), top=0.15)
        speed_up, efficiency = figure.subplots(1, 2)
        figure.subplots_adjust(wspace=0.25)
        speed_up.plot([1, most], [1, most], color=MUTED, linestyle="--", linewidth=1)
        efficiency.plot([1, most], [100, 100], color=MUTED, linestyle="--", linewidth=1)
        for place, (label, members) in enumerate(families.items()):
            marker, base = MARKERS[place % len(MARKERS)], members[0]["devices"]
            style = {"marker": marker, "markersize": 5, "linewidth": 1, "color": ACCENT if place == 0 else INK}
            counts = [row["devices"] for row in members]
            speed_up.plot(counts, [base * row["speed_up"] for row in members], label=label, **style)
            efficiency.plot(counts, [100 * row["efficiency"] for row in members], **style)
        speed_up.set_ylabel("speed-up")
        efficiency.set_ylabel("efficiency (%)")
        efficiency.set_ylim(bottom=0)
        speed_up.set_ylim(bottom=0)
        for axes in (speed_up, efficiency):
            axes.set_xlabel("devices")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(axis="y")
        key_below(figure)
        return svg_of(figure, name)


def _families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each family, by the name of its largest member."""
    families: list[list[Row]] = []
    for row in rows:
        if row["speed_up"] == 1 and row["efficiency"] == 1:  # the fewest devices: a family begins
            families.append([])
        families[-1].append(row)
    return {f"{family[-1]['strategy']}: {family[-1]['setting']}": family for family in families}


def cost_plot(candidates: Sequence[Candidate], name: str) -> str | None:
    """Seconds of an epoch against what it costs, with the Pareto front, as SVG; None for less than two candidates."""
    if len(candidates) < 2:
        return None
    points = [(each.seconds_per_piece.value * each.cost, each.seconds_per_piece.value) for each in candidates]
    front = sorted(p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points))
    with styled(name):
        height = 2.6 + 0.05 * max(0, len(candidates) - 10)  # many points need more room
        figure = figure_of(height + 0.16 * len(candidates), left=0.65, bottom=0.55 + 0.16 * len(candidates), top=0.15)
        axes = figure.subplots()
        axes.plot(*zip(*front, strict=True), color=ACCENT, linewidth=1, alpha=0.6)
        for place, (point, each) in enumerate(zip(points, candidates, strict=True)):
            colour = ACCENT if place == 0 else INK
            axes.plot(*point, linestyle="none", marker="o", markersize=6, color=colour)
            height = 0.06 + 0.16 * (len(candidates) - 1 - place)
            label, size = fitted(f"{place + 1}  {each.name}", most=7.5)
            figure.text(0.02, height / figure.get_figheight(), label, fontsize=size, color=colour)
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
        for place, offset in enumerate(_free_places(axes.transData.transform(points) * 72 / figure.dpi)):
            axes.annotate(
                str(place + 1),
                points[place],
                offset,
                textcoords="offset points",
                fontsize=8,
                color=ACCENT if place == 0 else INK,
                ha="center",
                va="center",
                annotation_clip=False,
            )
        return svg_of(figure, name)


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


def axis_plot(settings: Sequence[SettingResult], column: str, label: str, unit: str, name: str) -> str | None:
    """Speed over the values of one axis, such as the batch size, as SVG.

    Settings that differ in nothing else are joined by a line. None where no two settings differ in that axis alone. The
    values stand at equal distances, as batches and CPUs are usually doubled.
    """
    timed = [
        each for each in settings if each.row["samples_per_second"] and (each.row["equivalent"] or each.row["unproven"])
    ]
    lines = _differing_in(timed, column)
    if not lines:
        return None
    ticks = sorted({each.row[column] for members in lines for each in members})
    speed: Callable[[SettingResult], float] = lambda each: float(speed_in_unit(each.row))  # noqa: E731
    with styled(name):
        figure = figure_of(2.5 + 0.16 * len(lines), left=0.95, bottom=0.5 + 0.16 * len(lines), top=0.15)
        axes = figure.subplots()
        for place, members in enumerate(lines):
            colour, values = ACCENT if place == 0 else INK, [ticks.index(each.row[column]) for each in members]
            axes.plot(
                values, [speed(each) for each in members],
                color=colour, label=_common_name(members),
                marker=MARKERS[place % len(MARKERS)], markersize=5, linewidth=1,
            )  # fmt: skip
            for value, each in zip(values, members, strict=True):
                low, high = (speed_in_unit(each.row, part) for part in ("_low", "_high"))
                if low is not None:
                    axes.plot([value, value], [low, high], color=colour, linewidth=1)  # cut at the end of the axis
        axes.set_xlabel(label)
        axes.set_ylabel(f"{unit} per second")
        axes.set_ylim(0, room_for(speed(each) for members in lines for each in members))
        axes.set_xticks(range(len(ticks)), [f"{tick:,}" for tick in ticks])
        axes.set_xlim(-0.3, len(ticks) - 0.7)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FIGURES)
        axes.grid(axis="y")
        key_below(figure)
        return svg_of(figure, name)


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
    groups: dict[str, list[SettingResult]] = {}
    for each in settings:
        run = each.run
        key = {name: value for part in ("shape", "computation", "feeding", "batch", "length")
               for name, value in vars(getattr(run, part)).items() if name not in left_out}  # fmt: skip
        groups.setdefault(repr((run.strategy.name, dict(run.strategy.options), key)), []).append(each)
    lines = [sorted(members, key=lambda each: each.row[column]) for members in groups.values()]
    return [members for members in lines if len({each.row[column] for each in members}) > 1]
