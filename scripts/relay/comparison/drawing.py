"""What all plots of the report share: their style, their size, and the SVG elements that they become.

Their colours are CSS variables of the page, so that they follow its light or dark theme, and their text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relay.base.printable import printable
from relay.comparison.measured import SettingResult

# Placeholder colours, which are replaced by CSS variables, so that the plots follow the page's light or dark theme.
INK, MUTED, LINE, ACCENT, BAD = "#010203", "#020304", "#030405", "#040506", "#050607"
_VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", ACCENT: "--accent", BAD: "--bad"}
NAME_CHARACTERS = 80  # so many characters of size 8 fit into the width of a plot
MOST_CURVES = 300  # in one picture: beyond, no eye tells them apart, and the page opens slowly
LEAST_SIZE = 5.0  # smaller letters cannot be read
PANEL_CHARACTERS = 42  # and so many into that of one of two panels
# The page's light colours, for pictures in files of their own.
LIGHT = {"--ink": "#1c2321", "--muted": "#5b6562", "--line": "#d5dad7", "--accent": "#00695c", "--bad": "#b3261e"}
PAPER = "#fdfdfc"
# For parts of a whole: Okabe's and Ito's hues, which colour-blind people tell apart, light enough for black text.
PARTS = ("#56b4e9", "#e69f00", "#33b894", "#f08050", "#d998bf", "#e8d94a", "#b8bdbb")
ON_PARTS = "#111111"
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
FIGURES = "{x:,.10g}"  # of an axis
WIDTH_INCHES = 5.6  # on a phone, text in a wider plot would be too small to read
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


def figure_of(height_inches: float, *, left: float, bottom: float, top: float) -> Figure:
    """A figure with margins in inches. matplotlib's automatic layout would take most of the drawing time."""
    figure = Figure(figsize=(WIDTH_INCHES, height_inches))
    figure.subplots_adjust(
        left=left / WIDTH_INCHES,
        right=1 - 0.15 / WIDTH_INCHES,
        bottom=bottom / height_inches,
        top=1 - top / height_inches,
    )
    return figure


def colour_of(setting: SettingResult) -> str:
    if setting.row["equivalent"] is False:
        return BAD
    return ACCENT if setting.row["standing"] in ("fastest", "tie") else INK


def marker_of(setting: SettingResult) -> dict[str, Any]:
    colour = colour_of(setting)
    if setting.row["equivalent"] is False:
        return {"marker": "x", "markersize": 8, "markeredgewidth": 2, "color": colour}
    if setting.category == "failed":
        return {"marker": "o", "markersize": 7, "markerfacecolor": "none", "markeredgecolor": colour}
    return {"marker": "o", "markersize": 7, "color": colour}


def below(figure: Figure, text: str) -> None:
    """Write what all panels have on their horizontal axis at the lower edge, however high the figure is."""
    figure.supxlabel(text, fontsize=9, color=MUTED, y=0.04 / figure.get_figheight(), va="bottom")


def fitted(text: str, most: float = 8.0, room: int = NAME_CHARACTERS) -> tuple[str, float]:
    """The text, and the size of its letters, at most `most`, with which each of its lines fits.

    `room` is for so many characters of size 8. Where letters would be too small to read, lines are cut in the middle.
    """
    lines = [_cut(line, int(8.0 * room / LEAST_SIZE)) for line in text.split("\n")]
    return "\n".join(lines), min(most, 8.0 * room / max(map(len, [*lines, "x"])))


def _cut(line: str, most: int) -> str:
    """The line without its middle, so that it has at most so many characters: names differ at their ends, too."""
    if len(line) <= most:
        return line
    half = (most - 1) // 2
    return f"{line[:half]}…{line[-half:]}"


def titled(axes: Axes, text: str, room: int = PANEL_CHARACTERS) -> None:
    """Write a setting's name above its panel, in two lines if need be. `room` is that of characters of size 8."""
    lines, size = fitted(two_lines(text, room), most=7.5, room=room - 4)  # beside it is another panel
    axes.set_title(lines, fontsize=size, loc="left", color=INK)


def key_below(figure: Figure) -> None:
    """Write what each line of the plots stands for, at the lower edge."""
    pairs = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    named = [fitted(str(label), most=7.5, room=NAME_CHARACTERS - 6) for _, label in pairs]
    handles, labels, size = [handle for handle, _ in pairs], [text for text, _ in named], min(size for _, size in named)
    figure.legend(handles, labels, loc="lower left", fontsize=size, frameon=False, borderaxespad=0.1)


def named(axes: Axes, place: float, text: str) -> None:
    """Write a setting's name above its mark, at the left; a long one in smaller letters."""
    label, size = fitted(text)
    axes.annotate(
        label,
        (0, place - 0.25),
        xycoords=("axes fraction", "data"),
        fontsize=size,
        color=INK,
        va="center",
        annotation_clip=False,
    )


def in_rows(axes: Axes, count: float, *, first: float = -0.75, ticks: int = 4) -> None:
    """Axes with a row for each setting, from the top: a horizontal scale alone."""
    axes.set_ylim(count - 0.5, first)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.locator_params(axis="x", nbins=ticks)


def time_unit(longest: float) -> tuple[float, str]:
    """The unit that suits a time of so many seconds: its size in seconds, and its name."""
    return next((each for each in UNITS if longest >= 2 * each[0]), UNITS[-1])


def repeats_drawn(settings: Sequence[SettingResult]) -> int:
    """How many repeats of each setting have a curve, where each has one for itself: the first ones."""
    return max(1, MOST_CURVES // max(1, len(settings)))


def room_for(values: Iterable[float]) -> float:
    """The end of an axis of speeds: half as much again as the largest, however far an interval reaches."""
    return 1.5 * max(values)


def two_lines(name: str, width: int = PANEL_CHARACTERS) -> str:
    """The name, in two lines if it is too long for a panel. It is broken at the comma nearest to the middle."""
    commas = [comma.end() for comma in re.finditer(", ", name)]
    if len(name) <= width or not commas:
        return name
    middle = min(commas, key=lambda place: abs(place - len(name) / 2))
    return f"{name[:middle].rstrip()}\n{name[middle:]}"


@contextmanager
def styled(salt: str) -> Iterator[None]:
    # With a fixed salt, the same numbers give the same file.
    with mpl.rc_context({**_STYLE, "svg.hashsalt": salt}):
        yield


_MARKER = re.compile(r'\s*(<use [^>]*?) style="([^"]*)"/>')
_MARKERS = re.compile(rf"(?:{_MARKER.pattern})+")
_TENTHS = re.compile(r"(\.\d)\d+")


def svg_of(figure: Figure, name: str) -> str:
    """The figure as an <svg> element. It is hidden from screen readers, because caption and table say what it shows.

    The page decides its size. The ids of its parts begin with `name`, so that plots on a page do not collide.
    """
    stream = io.StringIO()
    figure.savefig(
        stream, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    svg = printable(stream.getvalue())  # XML has no control characters
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<svg ", '<svg aria-hidden="true" focusable="false" ', svg, count=1)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    ids = {old: f"{name}-{number}" for number, old in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]*)"', svg)))}
    svg = re.sub(r'(\bid="|href="#|url\(#)([^")]*)', lambda match: match[1] + ids.get(match[2], match[2]), svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return _shortened(svg)


def _shortened(svg: str) -> str:
    """The same picture in half of the bytes: a tenth of a point cannot be seen, and matplotlib writes a millionth."""
    # Of lines alone, in which each further point belongs to a line, too. Curves are the small shapes of markers.
    svg = re.sub(r'(?<= d=")[^"CQ]*(?=")', lambda match: _TENTHS.sub(r"\1", match[0]).replace(" \nL ", " "), svg)
    svg = re.sub(r'(?<= [xy]=")[^"]*', lambda match: _TENTHS.sub(r"\1", match[0]), svg)
    return re.sub(r"\n\s+", "\n", _MARKERS.sub(_in_one_style, svg))


def _in_one_style(markers: re.Match[str]) -> str:
    """Markers that follow each other, with each style written once, and each place."""
    by_style = groupby(_MARKER.findall(markers[0]), key=lambda marker: marker[1])
    each = ((style, "".join(dict.fromkeys(f"{place}/>" for place, _ in alike))) for style, alike in by_style)
    return "".join(f'<g style="{style}">{places}</g>' for style, places in each)


def standalone(svg: str) -> str:
    """A picture of the page as a file of its own: in the light colours, on paper, with a font that is everywhere."""
    for variable, colour in LIGHT.items():
        svg = svg.replace(f"var({variable})", colour)
    svg = svg.replace("font-family: inherit", "font-family: sans-serif")
    plain = re.sub(r' aria-hidden="true" focusable="false"', f' style="background: {PAPER}"', svg, count=1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{plain}'
