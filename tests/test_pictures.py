"""The report's pictures stay readable: wide intervals, points that lie close together, and names of lines."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from relay.comparison import drawing, pictures, plots
from relay.comparison.answer import answers
from relay.comparison.drawing import fitted
from relay.comparison.inputs import read_inputs
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.pictures import BESIDE, CLEAR, _free_places, axis_plot
from relay.comparison.plots import speed_plot
from relay.comparison.table import comparison_rows
from results_tree import Tree

pytest_plugins = ["results_tree"]


def results(tree: Tree) -> list[SettingResult]:
    inputs = read_inputs(tree.write_plan(), tree.root)
    return setting_results(inputs, comparison_rows(inputs))


def ticks(svg: str) -> list[float]:
    """The numbers on a picture's axes."""
    return [float(text.replace(",", "")) for text in re.findall(r">([\d,.]+)</text>", svg)]


@pytest.mark.parametrize("axis", [False, True])
def test_an_interval_that_reaches_far_does_not_squeeze_the_marks(tree: Tree, axis: bool) -> None:
    """Two repeats that differ by a factor of three have an interval up to a thousand times the mean."""
    tree.setting("cpu", [1000.0, 3000.0], name="one", cpus_per_task=1)
    tree.setting("cpu", [1100.0, 3300.0], name="two", cpus_per_task=2, threads=2)
    found = results(tree)
    assert found[0].row["samples_per_second_high"] > 1e6
    drawn = axis_plot(found, "cpus_per_task", "CPUs", "images", "x") if axis else speed_plot(found, "x")
    assert drawn is not None
    assert 1000 <= max(ticks(drawn)) <= 5000


@pytest.mark.slow
def test_the_first_repeats_alone_are_drawn_where_there_are_very_many(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.setting("cpu", [1000.0, 1010.0, 1020.0])
    tree.setting("cpu", [1100.0, 1110.0, 1120.0], threads=2, cpus_per_task=2)
    found, said = results(tree), "No more than 2 repeats of each setting are drawn."
    whole = plots.loss_plot(found, "x")
    assert tree.compare() == 0
    assert said not in tree.html
    monkeypatch.setattr(drawing, "MOST_CURVES", 4)
    fewer = plots.loss_plot(found, "x")
    assert whole is not None
    assert fewer is not None
    assert whole.count("<g id=") - fewer.count("<g id=") == 2  # a line of each setting
    assert tree.compare() == 0
    assert tree.html.count(said) == 2


def test_cpus_are_compared_where_the_workers_follow_them(tree: Tree) -> None:
    for cpus in (1, 2, 4):
        both = {"cpus_per_task": cpus, "threads": cpus, "data_workers": cpus}
        tree.setting("cpu", [1000.0], name=f"c{cpus}", loader="dataloader", **both)
    assert axis_plot(results(tree), "cpus_per_task", "CPUs", "images", "x") is not None
    assert axis_plot(results(tree), "data_workers", "workers", "images", "x") is None  # the CPUs differ, too


def test_a_line_keeps_its_settings_where_cpus_and_workers_are_crossed(tree: Tree) -> None:
    for cpus in (1, 2):
        for workers in (1, 2):
            both = {"cpus_per_task": cpus, "threads": cpus, "data_workers": workers}
            tree.setting("cpu", [1000.0], name=f"c{cpus}w{workers}", loader="dataloader", **both)
    drawn = axis_plot(results(tree), "cpus_per_task", "CPUs", "images", "x")
    assert drawn is not None
    names = re.findall(r">(cpu \([^<]*\))</text>", drawn)
    assert sorted(names) == ["cpu (1 proc, dataloader, 1 worker)", "cpu (1 proc, dataloader, 2 workers)"]


def test_numbers_of_close_points_do_not_lie_on_each_other() -> None:
    points = [(100.0, 100.0), (104.0, 98.0), (97.0, 103.0), (300.0, 10.0)]
    offsets = _free_places(points)
    numbers = [(x + dx, y + dy) for (x, y), (dx, dy) in zip(points, offsets, strict=True)]
    assert min(math.dist(one, other) for place, one in enumerate(numbers) for other in numbers[:place]) > CLEAR / 2
    assert offsets[3] == BESIDE[0]


def test_what_would_be_too_small_to_read_is_cut_in_its_middle() -> None:
    text, size = fitted("begins " + "x" * 300 + " ends", room=50)
    assert (len(text), size >= 5) == (79, True)
    assert text.startswith("begins xx")
    assert text.endswith("xx ends")


def test_a_long_name_stays_within_its_picture(tree: Tree) -> None:
    """Names of 200 characters, drawn by matplotlib's own font, in every picture that writes them."""
    long = {"options": {"compression": "powersgd, rather, bucket_cap_mb=25, " * 6}}
    for cpus in (1, 2):
        tree.setting("ddp", [1000.0 * cpus, 1001.0 * cpus], name=f"d{cpus}", devices_per_node=2, cpus_per_task=cpus,
                     threads=cpus, **long)  # fmt: skip
    found = results(tree)
    assert len(found[0].name) > 180
    drawn: dict[str, Figure] = {}

    def keep(figure: Figure, name: str) -> str:
        drawn[name] = figure
        return ""

    with pytest.MonkeyPatch.context() as patch:
        for module in (pictures, plots):
            patch.setattr(module, "svg_of", keep)
        pictures.quality_plot(found, "accuracy")
        pictures.memory_plot(found, "memory")
        pictures.axis_plot(found, "cpus_per_task", "CPUs", "images", "axis")
        plots.loss_plot(found, "loss")
        plots.speed_plot(found, "speed")
        inputs = read_inputs(tree.write_plan(), tree.root)
        (answer,) = answers(inputs, comparison_rows(inputs))
        pictures.cost_plot(answer.candidates, "cost")
        assert len(drawn) == 6
        for name, figure in drawn.items():
            for text in figure.findobj(Text):
                if "rather" in text.get_text():
                    assert text.get_window_extent().x1 <= 1.02 * figure.bbox.x1, name


def test_a_picture_is_written_shortly_and_shows_the_same() -> None:
    with drawing.styled("salt"):
        figure = Figure()
        axes = figure.subplots()
        axes.plot([0, 1, 2], [0.123456789, 1, 0.5], color=drawing.INK)
        axes.plot([0, 1, 1, 1], [0.2, 0.4, 0.4, 0.6], "o", color=drawing.MUTED)
        axes.set_title('url(#nothing) href="#nothing" <b>')
        svg = drawing.svg_of(figure, "x")
    parsed = ElementTree.fromstring(drawing.standalone(svg))
    ids = {element.get("id") for element in parsed.iter()}
    uses = [element for element in parsed.iter() if element.tag.endswith("use")]
    assert {use.get("{http://www.w3.org/1999/xlink}href", "")[1:] for use in uses} <= ids
    assert set(re.findall(r"clip-path=\"url\(#([^)]*)\)", svg)) <= ids
    (dots,) = [group for group in parsed.iter() if len([use for use in group if use in uses]) == 3]
    assert drawing.MUTED not in svg
    assert "--muted" in svg
    assert len({(use.get("x"), use.get("y")) for use in dots}) == 3  # one of the four lies on another
    assert max(len(number.partition(".")[2]) for number in re.findall(r' [xy]="([^"]*)"', svg)) == 1
    lines = [path.split() for path in re.findall(r' d="(M[^"]*)"', svg)]
    assert [line[0] for line in lines if len(line) == 7] == ["M"]  # the three points of the line
