"""By which figure of the test set it is told how much was learnt: the task's first metric, or else the test loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.comparison.columns import category
from relay.comparison.inputs import Record
from relay.comparison.measured import SettingResult
from relay.comparison.statistics import ratio
from relay.comparison.wording import MISSING, number, percent, seconds

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

    def told(self, row: Mapping[str, Any]) -> str:
        """The value of a row, or of a summary, in words."""
        value = row.get(self.column)
        return MISSING if value is None else percent(value) if self.name == "accuracy" else number(value)

    def evaluated(self, evaluation: Mapping[str, Any]) -> float | None:
        """The value that an evaluation of a run's summary has found; None where it has none."""
        if self.column == "test_metric":
            found: float | None = evaluation.get("test_metrics", {}).get(self.name)
            return found
        return evaluation.get(self.column)


def quality(rows: Iterable[Mapping[str, Any]]) -> Quality:
    """The figure for rows of one task."""
    name = next((str(row["metric"]) for row in rows if row["metric"]), None)
    if name is None:
        return Quality("loss", "test_loss")
    return Quality(name, "test_accuracy" if name == "accuracy" else "test_metric")


def stated_accuracy(settings: Sequence[SettingResult], asked: float | None) -> float | None:
    """The accuracy to which the time is told: `asked`, else the highest whole per cent that all repeats reach.

    Repeats of settings that are no result do not count. None for a task without classes, or where nothing was learnt.
    """
    best = [max(found) for each in settings if counts(each) for record in each.records if (found := _reached(record))]
    if asked is not None or not best:
        return asked if best else None
    return math.floor(100 * min(best)) / 100 or None


def seconds_to(record: Record, accuracy: float) -> float | None:
    """Seconds of training, at the measured speed, until an evaluation found that accuracy; None where none did.

    Evaluations, saving and starts are left out, as in every speed.
    """
    steps = [e["step"] for e in _evaluations(record) if e["test_accuracy"] >= accuracy]
    if not steps or not record.speed:
        return None
    return float(min(steps) * record.run.batch.global_batch_size / record.speed)


def counts(setting: SettingResult) -> bool:
    return category(setting.row) == "done"


def seconds_of(setting: SettingResult, accuracy: float) -> list[float]:
    return [value for record in setting.records if (value := seconds_to(record, accuracy)) is not None]


def _evaluations(record: Record) -> list[dict[str, Any]]:
    return [e for e in (record.summary or {}).get("evaluations", []) if e.get("test_accuracy") is not None]


def _reached(record: Record) -> list[float]:
    return [e["test_accuracy"] for e in _evaluations(record)]


def learns_more(best: SettingResult, settings: Sequence[SettingResult]) -> SettingResult | None:
    """The setting that has learnt most, where `best` has learnt less by more than chance; None where it has not.

    By the share of the test samples that are wrong, or else by the test loss, of each repeat, which has a seed of its
    own. Where neither has repeats, by more than `POINTS` of the samples, or a tenth of the loss.
    """
    by_accuracy = any(each.row["test_accuracy"] is not None for each in settings)
    lost = {id(each): _lost(each, by_accuracy=by_accuracy) for each in [best, *settings]}
    known = [each for each in settings if lost[id(each)]]
    if not lost[id(best)] or not known:
        return None
    most = min(known, key=lambda each: math.fsum(lost[id(each)]) / len(lost[id(each)]))
    found = ratio(lost[id(best)], lost[id(most)])
    if found.low is None and by_accuracy:
        return most if max(lost[id(best)]) - min(lost[id(most)]) > POINTS else None
    return most if found.value > LEARNS_LESS and (found.low is None or found.low > 1) else None


def _lost(setting: SettingResult, *, by_accuracy: bool) -> list[float]:
    """By repeat, the share of the test samples that are wrong, or the test loss. None is 0, which has no ratio."""
    column = "test_accuracy" if by_accuracy else "test_loss"
    values = [each[column] for each in setting.summaries if each.get(column) is not None]
    return [max(1 - value if by_accuracy else value, 1e-6) for value in values]


def learns_sooner(best: SettingResult, settings: Sequence[SettingResult]) -> str:
    """Which setting that trains otherwise is sooner at an accuracy that all reach, as a clause; '' where none is.

    Samples per second do not tell it: a larger batch takes fewer steps, and another precision other ones.
    """
    accuracy = stated_accuracy(settings, None)
    its = seconds_of(best, accuracy) if accuracy else []
    others = [each for each in settings if _training(each) != _training(best)]
    if accuracy is None or not its:
        return ""
    known = [(ratio(its, found), each, found) for each in others if (found := seconds_of(each, accuracy))]
    sure = [each for each in known if (each[0].low or each[0].value) > LEARNS_LESS]
    if not sure:
        return ""
    _, other, found = max(sure, key=lambda each: each[0].value)
    mine, theirs = (seconds(math.fsum(times) / len(times)) for times in (its, found))
    reached = f"a test accuracy of {percent(accuracy, 0)} after {theirs}, this one after {mine}"
    return f"{other.name}, another training, has {reached}"


def _training(setting: SettingResult) -> tuple[Any, ...]:
    """What settings share that take the same steps."""
    run = setting.run
    return run.batch.global_batch_size, run.task.learning_rate, repr(run.optimization), run.computation.precision
