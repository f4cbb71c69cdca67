"""Which settings cannot be recommended and why, and of what nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relay.base.errors import UserError
from relay.comparison.candidates import Candidate
from relay.comparison.columns import Row, category
from relay.comparison.measured import SettingResult
from relay.comparison.table import eligible
from relay.comparison.wording import number, seconds
from relay.spec import requirements
from relay.spec.run import Run


@dataclass(frozen=True)
class LeftOut:
    """A setting that cannot be recommended: struck out, failed, skipped or not timed; and why."""

    name: str
    category: str
    reason: str


def may_be_recommended(row: Row) -> bool:
    """Whether a setting has finished all of its repeats in a measured time, and is proven or cannot be."""
    return (
        eligible(row)
        and (row["equivalent"] is True or bool(row["unproven"]))
        and row["repeats"] == row["repeats_planned"]
    )


def beyond(each: Candidate) -> str:
    """Why a setting cannot be what is asked for: it does not reach the goal, or takes or costs too much; else ''."""
    rules = each.rules
    if each.goal and len(each.rates) < len(each.records):
        return f"not all of its repeats reach {each.goal}"
    hours = each.hours.value  # of all that is asked for, whatever it is ranked by
    if rules.deadline_hours and hours > rules.deadline_hours:
        return f"it takes {seconds(3600 * hours)}, of {rules.deadline_hours:g} h (answer.deadline_hours)"
    if rules.budget and each.charge(hours) > rules.budget:
        return f"it costs {number(each.charge(hours))} {rules.currency}, of {rules.budget:g} (answer.budget)"
    return ""


def near_limits(candidates: Sequence[Candidate]) -> list[str]:
    """Which settings may take longer than the deadline allows, as the repeats tell it."""
    limit = candidates[0].rules.deadline_hours
    return [
        f"{each.name} may take {seconds(3600 * each.hours.high)}, of {limit:g} h"
        for each in candidates
        if limit and each.hours.high and each.hours.high > limit
    ]


def left_out(results: Sequence[SettingResult]) -> list[LeftOut]:
    found = []
    for each in results:
        if not may_be_recommended(each.row):
            what = "not timed" if category(each.row) == "done" else category(each.row)
            found.append(LeftOut(each.name, what, each.row["reason"] or "no step after the warm-up"))
    return found


def only_on_cpu(results: Sequence[SettingResult]) -> list[str]:
    """Strategies that also work on GPUs, but were measured on CPUs only."""
    measured = [each for each in results if each.row["samples_per_second"]]
    on_gpus = {each.run.strategy.name for each in measured if each.run.shape.device != "cpu"}
    return sorted({each.run.strategy.name for each in measured if _made_for_gpus(each.run)} - on_gpus)


def _made_for_gpus(run: Run) -> bool:
    try:
        return "cuda" in requirements.read(Path(run.strategy.file)).devices
    except (OSError, SyntaxError, UserError):
        return True  # the strategy's file is gone; the report then says that no GPU was timed, to be safe
