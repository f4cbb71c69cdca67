"""The answer of a comparison: what to ask Slurm for, why, how sure it is, and what was not measured.

It is decided here and nowhere else. The page, the terminal, `answer.json` and `recommendation.sbatch` show it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from relay.base.errors import UserError
from relay.comparison.candidates import (
    Candidate,
    Compared,
    Rules,
    chosen,
    compared,
    cores,
    cost,
    gpus,
    least_speed_up,
    rules_of,
)
from relay.comparison.columns import Row, category, told_unit
from relay.comparison.inputs import Inputs
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.neighbours import hardly_timed, neighbours, places
from relay.comparison.quality import learns_sooner
from relay.comparison.request import Request, request
from relay.comparison.table import eligible
from relay.spec import requirements
from relay.spec.job import Job
from relay.spec.run import Run

Certainty = Literal["winner", "likely", "tie", "unclear", "alone", "none"]
SCRIPT = "recommendation.sbatch"  # of the first answer that recommends something


@dataclass(frozen=True)
class LeftOut:
    """A setting that cannot be recommended: struck out, failed, skipped or not timed; and why."""

    name: str
    category: str
    reason: str


@dataclass(frozen=True)
class WrongChoice:
    """A training with another setting: its time over the recommended one's, and the hours of devices that it adds."""

    name: str
    times_as_long: float
    more_gpu_hours: float
    more_core_hours: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to ask for to train a task. `best` is None where nothing can be recommended (`none`).

    `trained` is the task's name, with those of its options that the comparison varies: each of their values is another
    model or other data, and has an answer of its own. `script` is the name of the batch script that trains it.
    winner: better than every other beyond doubt. likely: the same, but for `neighbours`, which are the reasons why
    others may have slowed down the runs, `places`, which tell of settings that were measured elsewhere, `sooner`, which
    tells of another training that learns faster, or `short`, which tells what was timed for too short a time. tie:
    `tied` are as fast at the same cost or a higher one. unclear: the intervals do not tell; with `repeats` of each they
    would (None: not with a reasonable number). alone: nothing else was measured and proven. `job` is what the measured
    jobs asked for, `least_minutes` the shortest job that the cluster wants. `site_flags`: flags of sbatch that all jobs
    of the site have.
    """

    task: str
    trained: str
    unit: str
    rules: Rules
    certainty: Certainty
    best: Candidate | None = None
    job: Job | None = None
    least_minutes: int = 0
    site_flags: Sequence[str] = ()
    script: str = SCRIPT
    others: Sequence[Compared] = ()
    runner_up: Compared | None = None
    wrong: Sequence[WrongChoice] = ()
    left_out: Sequence[LeftOut] = ()
    only_on_cpu: Sequence[str] = ()
    neighbours: Sequence[str] = ()
    places: Sequence[str] = ()
    sooner: str = ""
    short: str = ""

    @property
    def one_of_several(self) -> bool:
        """Whether the comparison has further answers for the same task, with other options."""
        return self.trained != self.task

    @property
    def file_name(self) -> str:
        """What is trained, as a part of a file's name, such as 'discs-width-8'."""
        return re.sub(r"[^\w.]+", "-", self.trained).strip("-")

    @property
    def test_loss(self) -> float:
        """The test loss of the recommended setting; infinity where there is none."""
        found = self.best.row["test_loss"] if self.best else None
        return math.inf if found is None else float(found)

    @cached_property
    def request(self) -> Request | None:
        """What to ask for to train as long as the comparison's runs; None where nothing can be recommended."""
        return self.request_of(1)

    def request_of(self, times: int) -> Request | None:
        """What to ask for to train so many times as long; None where nothing can be recommended."""
        if self.best is None:
            return None
        return request(self.best.run, self.best.summaries, self.job, self.least_minutes, times)

    @property
    def doubts(self) -> list[str]:
        """Why the answer is not certain whatever the intervals say, each reason as a clause."""
        return [*self.neighbours, *self.places, *filter(None, [self.sooner, self.short])]

    @property
    def tied(self) -> list[Compared]:
        """The others that are as fast."""
        return [each for each in self.others if each.relation == "tie"]

    @property
    def unclear(self) -> list[Compared]:
        """The others of which the intervals do not tell whether they are better."""
        return [each for each in self.others if each.relation == "unclear"]

    @property
    def repeats(self) -> int | None:
        """How many repeats of each setting would tell; None where none are needed, or too many."""
        needed = [each.repeats for each in self.unclear]
        return max((n for n in needed if n), default=None) if needed and all(needed) else None

    @property
    def candidates(self) -> list[Candidate]:
        """The recommended setting, and all others that could have been it."""
        return [self.best, *(each.other for each in self.others)] if self.best else []

    @property
    def fastest(self) -> Candidate | None:
        """The fastest candidate, which need not be the recommended one."""
        return max(self.candidates, key=lambda each: each.rate, default=None)

    @property
    def cheapest(self) -> Candidate | None:
        """The candidate whose whole training costs least; of two that cost the same, the faster one."""
        return min(self.candidates, key=lambda each: (each.cost / each.rate, -each.rate), default=None)

    @property
    def larger(self) -> Compared | None:
        """The fastest candidate on more devices of the kind that is recommended; None where none was measured."""
        best = self.best
        more = [each for each in self.others if best and _on_more(each.other, best)]
        return max(more, key=lambda each: each.ratio.value, default=None)

    @property
    def other_kind(self) -> Compared | None:
        """The candidate on the other kind of device (GPUs beside CPUs, or CPUs beside GPUs) that is best there."""
        best = self.best
        other = [each for each in self.others if best and each.other.on_gpus != best.on_gpus]
        if not other:
            return None
        found = chosen([each.other for each in other], self.rules)
        return next(each for each in other if each.other is found)

    def turns_at(self, found: Compared) -> float:
        """How many times as fast as the recommended one another candidate would have to be, to be recommended."""
        assert self.best is not None
        if found.other.cost < self.best.cost:
            return 1 / least_speed_up(self.best, found.other, self.rules)
        beside = found.against.rate / self.best.rate
        return least_speed_up(found.other, found.against, self.rules) * beside


def answers(inputs: Inputs, rows: Sequence[Row]) -> list[Answer]:
    """The answer for all that is trained in the comparison. `rows` are those of `comparison_rows(inputs)`.

    Of one task's, that with the lowest test loss comes first: what has learnt most is what people train in the end.
    """
    results = setting_results(inputs, rows)
    alike: dict[str, list[SettingResult]] = {}
    for each in results:
        alike.setdefault(each.row["trained"], []).append(each)
    found = sorted(
        (_answer(members, inputs) for members in alike.values()), key=lambda each: (each.task, each.test_loss)
    )
    first = next((each for each in found if each.best), None)
    return [
        each if each is first else replace(each, script=f"recommendation-{each.file_name}.sbatch") for each in found
    ]


def _answer(results: Sequence[SettingResult], inputs: Inputs) -> Answer:
    row = results[0].row
    rules = rules_of(inputs.margin, inputs.rules)
    candidates = [_candidate(each, rules) for each in results if _may_be_recommended(each.row)]
    told: dict[str, Any] = {"task": row["task"], "trained": row["trained"], "rules": rules}
    told |= {"unit": told_unit(each.row for each in results)}
    told |= {"left_out": _left_out(results), "only_on_cpu": only_on_cpu(results)}
    if not candidates:
        return Answer(certainty="none", **told)
    best = chosen(candidates, rules)
    rest = [each for each in candidates if each is not best]
    others = [compared(best, each, candidates, rules) for each in rest]
    next_best = chosen(rest, rules) if rest else None
    answer = Answer(
        best=best,
        certainty=_certainty(others),
        neighbours=neighbours(candidates),
        places=places(candidates),
        sooner=learns_sooner(best, candidates),
        short=hardly_timed(candidates),
        job=_longest(best, inputs.rules.get("most_minutes") or 0),
        least_minutes=inputs.rules.get("least_minutes") or 0,
        site_flags=inputs.rules.get("site_flags") or (),
        others=others,
        runner_up=next((each for each in others if each.other is next_best), None),
        wrong=[_wrong(best, each.other) for each in others],
        **told,
    )
    return replace(answer, certainty="likely") if answer.certainty == "winner" and answer.doubts else answer


def _longest(best: Candidate, most_minutes: int) -> Job | None:
    """What the jobs of a setting asked for, with the most memory of them, and the longest time that one may ask for."""
    jobs = [record.job for record in best.records if record.job]
    if not jobs:
        return None
    memory_mb = max((job.memory_mb for job in jobs if job.memory_mb), default=None)
    return replace(jobs[0], memory_mb=memory_mb, minutes=max(most_minutes, *(job.minutes for job in jobs)))


def _may_be_recommended(row: Row) -> bool:
    """Whether a setting has finished all of its repeats in a measured time, and is proven or cannot be."""
    return (
        eligible(row)
        and (row["equivalent"] is True or bool(row["unproven"]))
        and row["repeats"] == row["repeats_planned"]
    )


def _candidate(found: SettingResult, rules: Rules) -> Candidate:
    return Candidate(found.row, found.label, found.records, cost(found.run, rules))


def _certainty(others: Sequence[Compared]) -> Certainty:
    """As the intervals tell it."""
    relations = {each.relation for each in others}
    if not others:
        return "alone"
    if "unclear" in relations:
        return "unclear"
    if "tie" in relations:
        return "tie"
    return "winner"


def _left_out(results: Sequence[SettingResult]) -> list[LeftOut]:
    found = []
    for each in results:
        if not _may_be_recommended(each.row):
            what = "not timed" if category(each.row) == "done" else category(each.row)
            found.append(LeftOut(each.name, what, each.row["reason"] or "no step after the warm-up"))
    return found


def _wrong(best: Candidate, other: Candidate) -> WrongChoice:
    hours, better = other.training_hours, best.training_hours
    return WrongChoice(
        other.name,
        hours / better,
        hours * gpus(other.run) - better * gpus(best.run),
        hours * cores(other.run) - better * cores(best.run),
    )


def _on_more(other: Candidate, best: Candidate) -> bool:
    return other.on_gpus == best.on_gpus and other.size > best.size


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
