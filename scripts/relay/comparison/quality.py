"""By which figure of the test set it is told how much was learnt: the task's first metric, or else the test loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relay.comparison.wording import MISSING, number, percent


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
