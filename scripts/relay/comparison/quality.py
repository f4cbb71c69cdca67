"""By which figure of the test set it is told how much was learnt: the task's first metric, or else the test loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.comparison.inputs import RunResult
from relay.comparison.request import once_seconds, whole_seconds
from relay.comparison.setting_result import Doubt, SettingResult
from relay.comparison.statistics import ratio
from relay.comparison.wording import MISSING, number, percent

LEARNS_LESS = 1.1  # times the errors, or the loss, of another setting: less does not matter
POINTS = 0.02  # of the test samples, where a single repeat tells nothing of chance


@dataclass(frozen=True)
class Quality:
    """The figure: its `name` behind the word "test", its column in a table and in a summary, and how it is told."""

    name: str
    column: str

    @property
    def factor(self) -> float:
        """By what a value is multiplied where it is shown: an accuracy is told in per cent."""
        return 100.0 if self.name == "accuracy" else 1.0

    @property
    def label(self) -> str:
        """The label of an axis, with its unit."""
        return f"test {self.name} (%)" if self.name == "accuracy" else f"test {self.name}"

    def as_text(self, value: float | None) -> str:
        """A value in words."""
        return MISSING if value is None else percent(value) if self.name == "accuracy" else number(value)

    def evaluated(self, evaluation: Mapping[str, Any]) -> float | None:
        """The value that an evaluation of a run's summary has found; None where it has none."""
        if self.column == "test_metric":
            value: float | None = evaluation.get("test_metrics", {}).get(self.name)
            return value
        return evaluation.get(self.column)


def quality(rows: Iterable[Mapping[str, Any]]) -> Quality:
    """The figure for rows of one task."""
    name = next((str(row["metric"]) for row in rows if row["metric"]), None)
    if name is None:
        return Quality("loss", "test_loss")
    return Quality(name, "test_accuracy" if name == "accuracy" else "test_metric")


@dataclass(frozen=True)
class Goal:
    """A test accuracy or a test loss, by its column, that trainings of different kinds are compared by."""

    column: str
    value: float

    def __str__(self) -> str:
        accuracy = self.column == "test_accuracy"
        return f"a test {f'accuracy of {percent(self.value, 0)}' if accuracy else f'loss of {number(self.value)}'}"

    def reached(self, repeat: RunResult) -> tuple[int, int] | None:
        """The step of the first evaluation that found it, and that of the one before, or 0; None where none did."""
        before = 0
        for evaluation in repeat.summary.evaluations if repeat.summary else ():
            value = evaluation.get(self.column)
            if value is not None and (value >= self.value if self.column == "test_accuracy" else value <= self.value):
                return evaluation["step"], before
            before = evaluation["step"]
        return None


def stated_accuracy(settings: Sequence[SettingResult], target: float | None) -> float | None:
    """The accuracy to which the time is told: `target`, else the highest whole per cent that all repeats reach.

    Repeats of settings that are no result do not count. None for a task without classes, or where nothing was learnt.
    """
    best = [max(values) for values in _evaluated(settings, "test_accuracy")]
    if target is not None or not best:
        return target if best else None
    return math.floor(100 * min(best)) / 100 or None


def stated_goal(settings: Sequence[SettingResult], target: float | None) -> Goal | None:
    """The accuracy or, without classes, the lowest loss that all repeats reach; None where that was not evaluated."""
    if accuracy := stated_accuracy(settings, target):
        return Goal("test_accuracy", accuracy)
    least = [min(values) for values in _evaluated(settings, "test_loss")]
    return Goal("test_loss", max(least)) if least else None


def seconds_to(repeat: RunResult, goal: Goal) -> float | None:
    """Seconds until an evaluation found it, as a job would do them: start, steps, evaluations; None where none did."""
    reached = goal.reached(repeat)
    if reached is None or not repeat.speed or not repeat.summary:
        return None
    whole, once = whole_seconds(repeat.run, repeat.summary), once_seconds(repeat.summary)
    return once + (whole - once) * reached[0] / repeat.run.length.total_steps


def _evaluated(settings: Sequence[SettingResult], column: str) -> list[list[float]]:
    """What the evaluations of each repeat found."""
    by_repeat = [
        [e[column] for e in (repeat.summary.evaluations if repeat.summary else ()) if e.get(column) is not None]
        for each in settings
        if each.category == "done"
        for repeat in each.repeats
    ]
    return [values for values in by_repeat if values]


def learns_more(best: SettingResult, settings: Sequence[SettingResult]) -> list[Doubt]:
    """The setting that has learnt most, where `best` has learnt less by more than chance; none where it has not.

    By the share of the test samples that are wrong, or else by the test loss, of each repeat, which has a seed of its
    own. Where neither has repeats, by more than `POINTS` of the samples, or a tenth of the loss.
    """
    by_accuracy = any(each.row["test_accuracy"] is not None for each in settings)
    lost = {id(each): _lost(each, by_accuracy=by_accuracy) for each in [best, *settings]}
    evaluated = [each for each in settings if lost[id(each)]]
    if not lost[id(best)] or not evaluated:
        return []
    most = min(evaluated, key=lambda each: math.fsum(lost[id(each)].values()) / len(lost[id(each)]))
    if most is best:
        return []
    relative = ratio(lost[id(best)], lost[id(most)], len(evaluated) - 1)
    if relative.low is None and by_accuracy:
        less = max(lost[id(best)].values()) - min(lost[id(most)].values()) > POINTS
    else:
        less = relative.value > LEARNS_LESS and (relative.low is None or relative.low > 1)
    return [Doubt("learns more", {"name": most.name, "row": most.row})] if less else []


def _lost(setting: SettingResult, *, by_accuracy: bool) -> dict[int, float]:
    """By repeat, the share of the test samples that are wrong, or the test loss. None is 0, which has no ratio."""
    column = "test_accuracy" if by_accuracy else "test_loss"
    values = {each.run.repeat: getattr(each.summary, column) for each in setting.repeats if each.summary}
    return {
        repeat: max(1 - value if by_accuracy else value, 1e-6) for repeat, value in values.items() if value is not None
    }
