"""What was measured of a setting: its row of the table, its name there, its repeats, and with which they are paired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.base.clock import other_day
from relay.base.grouped import grouped
from relay.comparison.columns import Row, category
from relay.comparison.inputs import Inputs, RunResult
from relay.comparison.statistics import Rounds
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
        return list(self.rounds.values())

    @property
    def rounds(self) -> dict[int, float]:
        """The same by repeat."""
        return rounds_of(self.repeats)

    @property
    def mark(self) -> str:
        """The text that follows the name of a setting that is struck out or failed; '' for others."""
        if self.row["equivalent"] is False:
            return " – struck out"
        return "" if self.category == "done" else f" – {self.category}"


@dataclass(frozen=True)
class Doubt:
    """A reason why no answer from these runs is certain, whatever the intervals say.

    Its kind has its words in `workflow/report/certainty.j2`, in which the `facts` stand.
    """

    kind: str
    facts: Mapping[str, Any]


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


def _starts(values: Rounds, repeats: Sequence[RunResult]) -> dict[int, str]:
    starts = {each.run.repeat: each.summary.started_at for each in repeats if each.summary}
    return {repeat: start for repeat, start in starts.items() if start and repeat in values}


def _near(start: str | None, others: Sequence[str]) -> bool:
    return not start or not others or any(not other_day(start, other) for other in others)
