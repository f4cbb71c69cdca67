"""What all pictures of the report share: their style, their size, and the SVG elements that they become.

Their colours are CSS variables of the page, so that they follow its light or dark theme, and their text stays text.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from relay.base.printable import printable
from relay.comparison.setting_result import SettingResult

# Placeholder colours, which are replaced by CSS variables, so that the pictures follow the page's light or dark theme.
INK, MUTED, LINE, ACCENT, BAD = "#010203", "#020304", "#030405", "#040506", "#050607"
_VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", ACCENT: "--accent", BAD: "--bad"}
# The page's light colours, for pictures in files of their own.
LIGHT = {"--ink": "#1c2321", "--muted": "#5b6562", "--line": "#d5dad7", "--accent": "#00695c", "--bad": "#b3261e"}
PAPER = "#fdfdfc"
# For parts of a whole: Okabe's and Ito's hues, which colour-blind people tell apart, light enough for black text.
PARTS = ("#56b4e9", "#e69f00", "#33b894", "#f08050", "#d998bf", "#e8d94a", "#b8bdbb")
ON_PARTS = "#111111"
LEAST_LABEL = 0.08  # of the width: a part that is narrower has no label
NAME_SIZE = 7.5  # of the letters of names, in 1/72 inch
NAME_CHARACTERS, PANEL_CHARACTERS = 96, 40  # so many of them fit into a picture, and into one of its two panels
MOST_SETTINGS = 40  # in a picture, the first of the table: what is beyond is in the table
MOST_CURVES = 300  # in one picture: beyond, no eye tells them apart, and the page opens slowly
ROOM = 1.5  # times the largest speed: so far an axis of speeds reaches, however far an interval does
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
FIGURES = "{x:,.10g}"  # of an axis
WIDTH_INCHES = 5.6  # on a phone, text in a wider picture would be too small to read
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
    "axes.titlesize": NAME_SIZE,
    "axes.titlelocation": "left",
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "legend.fontsize": NAME_SIZE,
    "legend.frameon": False,
    "legend.borderaxespad": 0.1,
}


def drawn(picture: Callable[[], Figure | None], name: str) -> str | None:
    """A picture as an <svg> element; None where there is nothing to draw. `name` is unique on the page."""
    # With a fixed salt, the same numbers give the same file. Its text stays text, so that no font has to have a letter.
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings(action="ignore"):
        figure = picture()
        return svg_of(figure, name) if figure else None


def figure_of(height_inches: float, *, left: float = 0.1, bottom: float = 0.5, top: float = 0.1) -> Figure:
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
    """A cross for what is struck out, a hollow dot for what has failed in part."""
    shape = {"marker": "x", "markeredgewidth": 2} if setting.row["equivalent"] is False else {"marker": "o"}
    hollow = {"markerfacecolor": "none"} if setting.category == "failed" else {}
    return {"linestyle": "none", "markersize": 7, "color": colour_of(setting)} | shape | hollow


def cut(name: str, most: int = NAME_CHARACTERS) -> str:
    """The name without words of its middle, so that it has at most so many characters: names differ at their ends."""
    if len(name) <= most:
        return name
    half = (most - 3) // 2
    first, last = name[: half + 1].rpartition(" ")[0], name[-half - 1 :].partition(" ")[2]
    if not first or not last:  # a single long word
        return f"{name[: half + 1]}…{name[-half - 1 :]}"
    return f"{first} … {last}"


def title(name: str) -> str:
    """A setting's name to stand above its panel, in three lines at most."""
    most = 3 * PANEL_CHARACTERS - 15  # lines never fill up
    return textwrap.fill(cut(name, most), PANEL_CHARACTERS, max_lines=3, placeholder="…")


def named(axes: Axes, place: float, name: str) -> None:
    """Write a setting's name above its mark, at the left."""
    at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center", "annotation_clip": False}
    axes.annotate(cut(name), (0, place - 0.25), fontsize=NAME_SIZE, color=INK, **at)


def in_rows(axes: Axes, count: float, *, first: float = -0.75) -> None:
    """Axes with a row for each setting, from the top: a horizontal scale alone."""
    axes.set_ylim(count - 0.5, first)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.locator_params(axis="x", nbins=4)


def repeats_drawn(settings: Sequence[SettingResult]) -> int:
    """How many repeats of each setting have a curve: the first ones."""
    return max(1, MOST_CURVES // max(1, len(settings)))


def svg_of(figure: Figure, name: str) -> str:
    """The figure as an <svg> element. It is hidden from screen readers, because caption and table say what it shows.

    The page decides its size. The ids of its parts begin with `name`, so that pictures on a page do not collide.
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
    # A tenth of a point cannot be seen, and matplotlib writes a millionth. Curves are the small shapes of markers.
    svg = re.sub(r'(?<= d=")[^"CQ]*(?=")|(?<= [xy]=")[^"]*', lambda match: re.sub(r"(\.\d)\d+", r"\1", match[0]), svg)
    return re.sub(r"\n\s+", "\n", svg)


def standalone(svg: str) -> str:
    """A picture of the page as a file of its own: in the light colours, on paper, with a font that is everywhere."""
    for variable, colour in LIGHT.items():
        svg = svg.replace(f"var({variable})", colour)
    svg = svg.replace("font-family: inherit", "font-family: sans-serif")
    plain = re.sub(r' aria-hidden="true" focusable="false"', f' style="background: {PAPER}"', svg, count=1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{plain}'
