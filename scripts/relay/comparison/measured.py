"""What was measured of a setting: its row of the table, its name there, and the records of its repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relay.comparison.columns import Row, category
from relay.comparison.inputs import Inputs, Record
from relay.comparison.table import by_setting, rounds_of, speeds_of
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
    records: Sequence[Record]

    @property
    def name(self) -> str:
        """What people read: the strategy, and the label."""
        return f"{self.row['strategy']} ({self.label})"

    @property
    def run(self) -> Run:
        """The first repeat."""
        return self.records[0].run

    @property
    def job(self) -> Job | None:
        """What its jobs asked for; None without a scheduler."""
        return self.records[0].job

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """Those of the finished repeats."""
        return [record.summary for record in self.records if record.summary]

    @property
    def speeds(self) -> list[float]:
        """Samples per second of the repeats that were timed."""
        return speeds_of(self.records)

    @property
    def rounds(self) -> dict[int, float]:
        """The same by repeat."""
        return rounds_of(self.records)

    @property
    def mark(self) -> str:
        """The text that follows the name of a setting that is struck out or failed; '' for others."""
        if self.row["equivalent"] is False:
            return " – struck out"
        return "" if category(self.row) == "done" else f" – {category(self.row)}"


def setting_results(inputs: Inputs, rows: Sequence[Row]) -> list[SettingResult]:
    """What was measured of each of `comparison_rows(inputs)`, in their order."""
    groups = by_setting(inputs.records)
    labels = setting_labels(rows)
    return [SettingResult(row, label, groups.get(row["setting"], [])) for row, label in zip(rows, labels, strict=True)]
