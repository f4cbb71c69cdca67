"""Two folders of results compared: before and after a maintenance, or cluster A and cluster B.

Settings are matched by what is declared of their training, whatever the place: site, software and nodes may differ. The
statistics are those of the comparison: the interval of the ratio of two speeds, and a margin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relay.base.clock import other_day
from relay.base.errors import UserError
from relay.comparison.columns import Row, eligible
from relay.comparison.inputs import Inputs, read_inputs
from relay.comparison.setting_result import SettingResult, setting_results
from relay.comparison.statistics import Estimate, band, geometric_mean, ratio_of_days
from relay.comparison.table import comparison_rows, versions_text
from relay.spec.declare import bearing
from relay.spec.run import GROUPS, Run

Change = Literal["faster", "slower", "the same", "unclear", "not compared"]
OF_A_DAY = 0.2  # of the speed: so much may a day bring that no other was measured beside
PLACE = "place"  # the group of fields that says where a run was made: it may differ


@dataclass(frozen=True)
class Changed:
    """A setting of the two folders. `ratio` is the speed after over that before; None where there is none."""

    name: str
    change: Change
    ratio: Estimate | None
    before: SettingResult | None
    after: SettingResult | None
    reason: str = ""

    def as_row(self) -> Row:
        """The row of its table."""
        sides = {"before": self.before, "after": self.after}
        speeds = {when: _speeds(side) if side else [] for when, side in sides.items()}
        return {
            "task": next(side.row["task"] for side in (self.after, self.before) if side),
            "setting": self.name,
            "change": self.change,
            **(self.ratio.columns("ratio") if self.ratio else dict.fromkeys(("ratio", "ratio_low", "ratio_high"))),
            **{f"{when}_per_second": geometric_mean(its).value if its else None for when, its in speeds.items()},
            **{f"repeats_{when}": len(speeds[when]) if side else None for when, side in sides.items()},
            "reason": self.reason or None,
            **{when: side.row["setting"] if side else None for when, side in sides.items()},
        }


def between(before: Path, after: Path, margin: float | None = None) -> list[Changed]:
    """Compare every setting of two folders of results. `margin` is by default that of the plan of `after`.

    Raises UserError where a folder is not readable, and where the two are the same or have no setting in common.
    """
    if before.resolve() == after.resolve():
        raise UserError(f"{before} and {after} are the same folder: give that of another time or place")
    one, other = (read_inputs(folder / "plan.json", folder, partial=True) for folder in (before, after))
    olds, news = _measured(one), _measured(other)
    if not set(olds) & set(news):
        raise UserError(
            f"{before} and {after}: no setting is in both: compare results of one config, made at two times or places"
        )
    least = other.margin if margin is None else margin
    return [_changed(olds.get(key), news.get(key), least) for key in {**olds, **news}]


def _measured(inputs: Inputs) -> dict[str, SettingResult]:
    """The settings of a folder, by what is declared of their training. Skipped ones have no runs, and are left out."""
    return {_key(each.run): each for each in setting_results(inputs, comparison_rows(inputs)) if each.repeats}


def _key(run: Run) -> str:
    """What is declared of a training, but for its place and for the file that the strategy lies in."""
    groups = {name: bearing(getattr(run, name), "identity") for name, _ in GROUPS if name != PLACE}
    return repr((run.task, run.dataset, run.strategy.name, dict(run.strategy.options), groups))


def _changed(before: SettingResult | None, after: SettingResult | None, margin: float) -> Changed:
    either = after or before
    assert either is not None
    if before is None or after is None:
        return Changed(either.name, "not compared", None, before, after, reason="not planned in the other folder")
    if faults := list(_faults(before, after)):
        return Changed(either.name, "not compared", None, before, after, reason="; ".join(faults))
    sides = [_days(after), _days(before)]
    one_day = min(map(len, sides)) == 1
    if one_day:
        sides = [_speeds(after), _speeds(before)]
    ratio = ratio_of_days(*sides)
    return Changed(after.name, _judged(ratio, margin, OF_A_DAY if one_day else 0.0), ratio, before, after)


def _faults(before: SettingResult, after: SettingResult) -> Iterator[str]:
    for when, measured in (("before", before), ("after", after)):
        if not _speeds(measured):
            reason = measured.row["reason"]
            yield f"{when}: {measured.category}{f': {reason}' if reason else ''}"


def _speeds(measured: SettingResult) -> list[float]:
    """Samples per second of the repeats; none where the setting may not be compared."""
    return measured.speeds if eligible(measured.row) else []


def _days(measured: SettingResult) -> list[float]:
    """The mean speed of each day. Repeats of one day share what the day brings: they are no days of their own."""
    timed = [(each.summary.started_at or "", each.speed) for each in measured.repeats if each.summary and each.speed]
    days: list[list[float]] = []
    first = ""
    for start, speed in sorted(timed):
        # A night's repeats have two dates, and are of one day. Those of an unknown day come first.
        if not days or (start and (not first or other_day(first, start))):
            days, first = [*days, []], start
        days[-1].append(speed)
    return [geometric_mean(speeds).value for speeds in days]


def _judged(ratio: Estimate, margin: float, of_a_day: float) -> Change:
    """The change: the whole interval beyond the band of a tie and of what a day brings, or within it; else unclear."""
    if ratio.low is None or ratio.high is None:
        return "unclear"
    least, most = band(max(margin, of_a_day))
    if ratio.high < least:
        return "slower"
    if ratio.low > most:
        return "faster"
    low, high = band(margin)
    return "the same" if low <= ratio.low and ratio.high <= high else "unclear"


def made_otherwise(changes: Sequence[Changed]) -> Iterator[str]:
    """In what the two folders were measured otherwise, a line for software and one for devices; nothing without."""
    for what, as_text in (
        ("software", lambda summary: versions_text(summary.versions)),
        ("devices", lambda summary: summary.device_name),
    ):
        sides = [
            sorted({as_text(summary) for each in measured if each for summary in each.summaries})
            for measured in ([each.before for each in changes], [each.after for each in changes])
        ]
        if sides[0] != sides[1] and all(sides):
            yield f"{what}: before: {' | '.join(sides[0])}; after: {' | '.join(sides[1])}"
    compared = [(each.before, each.after) for each in changes if each.before and each.after and each.ratio]
    if any(len(_days(side)) == 1 for pair in compared for side in pair):
        yield (
            "days: a side was measured on one day, so the day may be the reason. Measure before and after on three "
            "days each, and the days' spread is part of every interval"
        )
