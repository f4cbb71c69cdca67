"""The training that a setting is shown beside, and a picture of the time to a stated accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay.comparison.drawing import MUTED, colour_of, figure_of, marker_of, named, styled, svg_of
from relay.comparison.inputs import Record
from relay.comparison.measured import SettingResult
from relay.comparison.quality import Goal, counts, seconds_to
from relay.comparison.statistics import geometric_mean

# Seconds, and the unit in which an axis up to twice as long is told.
TIMES = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def behind(setting: SettingResult, settings: Sequence[SettingResult]) -> SettingResult | None:
    """The setting whose curve lies behind this one's: the same training in one process, and in fp32.

    Where none was measured, the first setting that trains the same, else the first of all; None where that is itself.
    """
    alike = [each for each in settings if _trains(each) == _trains(setting)]
    plain = [each for each in alike if _plain(each.records[0])]
    found = (plain or alike or list(settings))[0]
    return None if found is setting else found


def _trains(setting: SettingResult) -> tuple[Any, ...]:
    """What settings share that take the same steps."""
    run = setting.records[0].run
    return run.batch.global_batch_size, run.task.learning_rate, repr(run.optimization), run.length.epochs


def _plain(record: Record) -> bool:
    return record.run.shape.world_size == 1 and record.run.computation.precision == "fp32"


def time_plot(settings: Sequence[SettingResult], accuracy: float | None, name: str) -> str | None:
    """Seconds to an accuracy for each setting as SVG, the fewest first; None where no setting has reached it."""
    if accuracy is None:
        return None
    goal = Goal("test_accuracy", accuracy)
    times = [(each, [seconds_to(record, goal) for record in each.records]) for each in settings if counts(each)]
    known = [(each, found) for each, seconds in times if (found := [value for value in seconds if value])]
    if not known:
        return None
    known.sort(key=lambda pair: geometric_mean(pair[1]).value)
    longest = max(max(seconds) for _, seconds in known)
    length, unit = next((time for time in TIMES if longest >= 2 * time[0]), TIMES[-1])
    with styled(name):
        figure = figure_of(0.75 + 0.42 * len(known), left=0.1, bottom=0.5, top=0.1)
        axes = figure.subplots()
        for place, (setting, seconds) in enumerate(known):
            values = [value / length for value in seconds]
            missing = len(setting.records) - len(values)
            note = f" – {missing} of {len(setting.records)} repeats did not reach it" if missing else ""
            axes.plot(values, [place + 0.2] * len(values), linestyle="none", marker="o", markersize=2, color=MUTED)
            mark = marker_of(setting, colour_of(setting)) | ({"markerfacecolor": "none"} if missing else {})
            axes.plot([geometric_mean(values).value], [place + 0.05], linestyle="none", **mark)
            named(axes, place, setting.name + note)
        axes.set_ylim(len(known) - 0.5, -0.75)
        axes.set_xlim(left=0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{unit} of training to a test accuracy of {100 * accuracy:.3g} %")
        axes.locator_params(axis="x", nbins=4)
        axes.grid(axis="x")
        return svg_of(figure, name)
