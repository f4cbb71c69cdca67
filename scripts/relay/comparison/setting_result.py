"""What was measured of a setting: its row, its name, its repeats, with which they are paired, and what it learnt."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.base.clock import other_day
from relay.base.grouped import grouped
from relay.comparison.columns import MISSING, Row, category, margin, number, percent
from relay.comparison.inputs import Inputs, RunResult
from relay.comparison.request import course
from relay.comparison.statistics import Estimate, Rounds, ratio
from relay.run_folder.summary import Summary
from relay.spec.job import Job
from relay.spec.labels import setting_labels
from relay.spec.run import Run


@dataclass(frozen=True)
class SettingResult:
    """A setting with its row, the label that tells it from others of its strategy, and its repeats.

    A skipped one has no repeats.
    """

    row: Row
    label: str
    repeats: Sequence[RunResult]

    @property
    def name(self) -> str:
        """What people read: the strategy, and the label."""
        return f"{self.row['strategy']} ({self.label})"

    @property
    def category(self) -> str:
        """That of its row."""
        return category(self.row)

    @property
    def run(self) -> Run:
        """The first repeat."""
        return self.repeats[0].run

    @property
    def job(self) -> Job | None:
        """What its jobs asked for; None without a scheduler."""
        return self.repeats[0].job

    @property
    def summaries(self) -> list[Summary]:
        """Those of the finished repeats."""
        return [repeat.summary for repeat in self.repeats if repeat.summary]

    @property
    def speeds(self) -> list[float]:
        """Samples per second of the repeats that were timed."""
        return list(rounds_of(self.repeats).values())

    @property
    def mark(self) -> str:
        """The text that follows the name of a setting that is struck out or failed; '' for others."""
        if self.row["equivalent"] is False:
            return " – struck out"
        return "" if self.category == "done" else f" – {self.category}"


def setting_results(inputs: Inputs, rows: Sequence[Row]) -> list[SettingResult]:
    """What was measured of each of `comparison_rows(inputs)`, in their order."""
    groups = by_setting(inputs.runs)
    labels = setting_labels(rows)
    return [SettingResult(row, label, groups.get(row["setting"], [])) for row, label in zip(rows, labels, strict=True)]


def by_setting(runs: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    """The repeats of each setting, in the plan's order of settings and by repeat."""
    groups = grouped(runs, lambda each: each.run.setting_id)
    return {setting: sorted(group, key=lambda each: each.run.repeat) for setting, group in groups.items()}


def rounds_of(group: Sequence[RunResult]) -> dict[int, float]:
    """Samples per second of the repeats that were timed, by repeat."""
    return {each.run.repeat: each.speed for each in group if each.speed}


def paired(
    values: Rounds, repeats: Sequence[RunResult], others: Rounds, beside: Sequence[RunResult]
) -> tuple[Rounds, Rounds]:
    """Two settings' values by repeat, without repeats that were measured on a day on which the other setting was not.

    Where some are left out, the others are paired in their order: a setting that is measured again beside a new one
    has other numbers of repeats. A single one that was measured again stays. Where no day is common, all are returned,
    and the answer says so.
    """
    mine, theirs = _starts(values, repeats), _starts(others, beside)
    kept = [each for each in values if _near(mine.get(each), [*theirs.values()])]
    kept_others = [each for each in others if _near(theirs.get(each), [*mine.values()])]
    left_out = max(len(values) - len(kept), len(others) - len(kept_others))
    if not kept or not kept_others or left_out <= 1:
        return values, others
    return (
        {place: values[repeat] for place, repeat in enumerate(sorted(kept))},
        {place: others[repeat] for place, repeat in enumerate(sorted(kept_others))},
    )


def relative_speed(group: Sequence[RunResult], others: Sequence[RunResult], among: int = 1) -> Estimate:
    """How many times as fast the steps of a setting are as those of another one, of so many such ratios."""
    return ratio(*paired(rounds_of(group), group, rounds_of(others), others), among)


def _starts(values: Rounds, repeats: Sequence[RunResult]) -> dict[int, str]:
    starts = {each.run.repeat: each.summary.started_at for each in repeats if each.summary}
    return {repeat: start for repeat, start in starts.items() if start and repeat in values}


def _near(start: str | None, others: Sequence[str]) -> bool:
    return not start or not others or any(not other_day(start, other) for other in others)


# By which figure of the test set it is told how much was learnt: the task's first metric, or else the test loss


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
        return f"a test {f'accuracy of {margin(self.value)}' if accuracy else f'loss of {number(self.value)}'}"

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
    return math.floor(round(100 * min(best), 6)) / 100 or None  # 100 * 0.57 is below 57


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
    its = course(repeat.run, repeat.summary)
    return its.once + (its.whole - its.once) * reached[0] / repeat.run.length.total_steps


def _evaluated(settings: Sequence[SettingResult], column: str) -> list[list[float]]:
    """What the evaluations of each repeat found."""
    by_repeat = [
        [e[column] for e in (repeat.summary.evaluations if repeat.summary else ()) if e.get(column) is not None]
        for each in settings
        if each.category == "done"
        for repeat in each.repeats
    ]
    return [values for values in by_repeat if values]
