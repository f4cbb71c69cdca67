"""The report's plots, as SVG elements. Their colours are CSS variables of the page, and their text stays text."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from relay.comparison.columns import Row, category, told_speed, told_unit
from relay.comparison.inputs import Record
from relay.datasets import kinds

# Placeholder colours, which are replaced by CSS variables, so that the plots follow the page's light or dark theme.
INK, MUTED, LINE, ACCENT, BAD = "#010203", "#020304", "#030405", "#040506", "#050607"
_VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", ACCENT: "--accent", BAD: "--bad"}
_WIDTH_INCHES = 5.6  # on a phone, text in a wider plot would be too small to read
_LABEL_CHARACTERS = 88  # so many characters of the usual size fit into that width
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may contain dollar signs
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
}


@dataclass(frozen=True)
class Plotted:
    """A setting to draw: its row and name in the table, and the records of its repeats."""

    row: Row
    name: str
    records: Sequence[Record]

    @property
    def mark(self) -> str:
        """The text that follows the name of a setting that is struck out or failed; '' for others."""
        if self.row["equivalent"] is False:
            return " – struck out"
        return "" if category(self.row) == "done" else f" – {category(self.row)}"


def speed_plot(settings: Sequence[Plotted], name: str) -> str | None:
    """Speed (geometric mean, 95 % interval) beside test accuracy or loss, as SVG; None without any speed.

    Small dots are repeats. Struck-out settings have a cross, partly failed ones a hollow dot. `name` must be unique on
    the page, because the ids of the plot's parts begin with it.
    """
    timed = [setting for setting in settings if setting.row["samples_per_second"]]
    if not timed:
        return None
    with _style(name):
        figure = _figure(0.75 + 0.5 * len(timed), left=0.1, bottom=0.5, top=0.1)
        speed, quality = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        figure.subplots_adjust(wspace=0.1)
        for place, setting in enumerate(timed):
            _speed(speed, place, setting)
        measure, factor, label = _measure(timed)
        for place, setting in enumerate(timed):
            _quality(quality, place, setting, measure, factor)
        speed.set_xlim(left=0)
        speed.set_xlabel(f"{told_unit(setting.row for setting in timed)} per second")
        quality.set_xlabel(label)
        speed.set_ylim(len(timed) - 0.5, -0.75)
        for axes in (speed, quality):
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.grid(axis="x")
            axes.locator_params(axis="x", nbins=4)
        speed.xaxis.set_major_formatter(lambda value, position: f"{value:,.10g}")
        return _svg(figure, name)


def loss_plot(settings: Sequence[Plotted], name: str) -> str | None:
    """Training loss over epochs as SVG, with a panel for each setting and a line for each repeat; None without losses.

    All panels share their axes. The first setting's first repeat is drawn in grey in all other panels.
    """
    drawn = [(setting, curves) for setting in settings if (curves := list(_curves(setting)))]
    if not drawn:
        return None
    losses = [loss for _, curves in drawn for _, values in curves for loss in values]
    finite = [loss for loss in losses if not math.isnan(loss)]
    logarithmic = bool(finite) and min(finite) > 0 and max(finite) < math.inf
    decades = math.log10(max(finite) / min(finite)) if logarithmic else 0
    with _style(name):
        lines = math.ceil(len(drawn) / 2)
        figure = _figure(0.5 + 1.55 * lines, left=0.8, bottom=0.5, top=0.35)
        panels = figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False).flat
        figure.subplots_adjust(wspace=0.08, hspace=0.42)
        for place, ((setting, curves), panel) in enumerate(zip(drawn, panels, strict=False)):
            if place:
                panel.plot(*drawn[0][1][0], color=MUTED, linewidth=0.6, alpha=0.45)
            for curve in curves:
                panel.plot(*curve, color=_colour(setting), linewidth=0.9, alpha=0.8)
            panel.set_title(_two_lines(setting.name + setting.mark), fontsize=7.5, loc="left", color=INK)
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
        figure.supxlabel("epochs", fontsize=9, color=MUTED, y=0.02, va="bottom")
        figure.supylabel("training loss", fontsize=9, color=MUTED, x=0.01)
        return _svg(figure, name)


def _figure(height_inches: float, *, left: float, bottom: float, top: float) -> Figure:
    """A figure with margins in inches. matplotlib's automatic layout would take most of the drawing time."""
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches))
    figure.subplots_adjust(
        left=left / _WIDTH_INCHES,
        right=1 - 0.15 / _WIDTH_INCHES,
        bottom=bottom / height_inches,
        top=1 - top / height_inches,
    )
    return figure


def _units(record: Record) -> int:
    """Units, such as tokens, of one sample of the record's dataset."""
    return kinds.load(record.run.dataset.kind).units_per_sample(record.run.dataset)


def _speed(axes: Axes, place: int, setting: Plotted) -> None:
    row, colour = setting.row, _colour(setting)
    low, high, value = (told_speed(row, part) for part in ("_low", "_high", ""))
    if low is not None:
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot([low, high], [place, place], color=colour, linestyle="none", marker="|", markersize=7)
    repeats = [speed * _units(record) for record in setting.records if (speed := record.speed)]
    axes.plot(repeats, [place + 0.16] * len(repeats), linestyle="none", marker="o", markersize=2, color=MUTED)
    axes.plot([value], [place], linestyle="none", **_marker(setting, colour))
    label = setting.name + setting.mark
    axes.annotate(
        label,
        (0, place - 0.28),
        xycoords=("axes fraction", "data"),
        fontsize=min(8, 8 * _LABEL_CHARACTERS / len(label)),
        color=INK,
        va="center",
        annotation_clip=False,
    )


def _measure(settings: Sequence[Plotted]) -> tuple[str, float, str]:
    """Test accuracy if the task has one, else test loss: the key in a summary, a factor, and the label of the axis."""
    if any(setting.row["test_accuracy"] is not None for setting in settings):
        return "test_accuracy", 100, "test accuracy (%)"
    return "test_loss", 1, "test loss"


def _quality(axes: Axes, place: int, setting: Plotted, measure: str, factor: float) -> None:
    measured = [record.summary.get(measure) for record in setting.records if record.summary]
    values = [factor * value for value in measured if value is not None]
    axes.plot(values, [place + 0.16] * len(values), linestyle="none", marker="o", markersize=2, color=MUTED)
    if values:
        mean = factor * setting.row[measure]
        axes.plot([mean], [place], linestyle="none", **_marker(setting, _colour(setting)))


def _curves(setting: Plotted) -> Iterator[tuple[list[float], list[float]]]:
    for record in setting.records:
        losses = record.summary["losses"] if record.summary else {}
        if losses.get("values"):
            yield [step / record.run.length.steps_per_epoch for step in losses["steps"]], losses["values"]


def _colour(setting: Plotted) -> str:
    if setting.row["equivalent"] is False:
        return BAD
    return ACCENT if setting.row["standing"] in ("best", "tie") else INK


def _marker(setting: Plotted, colour: str) -> dict[str, Any]:
    if setting.row["equivalent"] is False:
        return {"marker": "x", "markersize": 8, "markeredgewidth": 2, "color": colour}
    if category(setting.row) == "failed":
        return {"marker": "o", "markersize": 7, "markerfacecolor": "none", "markeredgecolor": colour}
    return {"marker": "o", "markersize": 7, "color": colour}


def _two_lines(name: str, width: int = 42) -> str:
    """The name, in two lines if it is too long for a panel. It is broken at the comma nearest to the middle."""
    commas = [comma.end() for comma in re.finditer(", ", name)]
    if len(name) <= width or not commas:
        return name
    middle = min(commas, key=lambda place: abs(place - len(name) / 2))
    return f"{name[:middle].rstrip()}\n{name[middle:]}"


@contextmanager
def _style(salt: str) -> Iterator[None]:
    # With a fixed salt, the same numbers give the same file.
    with mpl.rc_context({**_STYLE, "svg.hashsalt": salt}):
        yield


def _svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element. It is hidden from screen readers, because caption and table say what it shows.

    The page decides its size. The ids of its parts begin with `name`, so that plots on a page do not collide.
    """
    stream = io.StringIO()
    figure.savefig(
        stream, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<svg ", '<svg aria-hidden="true" focusable="false" ', svg, count=1)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg
