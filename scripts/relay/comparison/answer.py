"""The answer of a comparison: what to ask Slurm for, why, how sure it is, and what was not measured.

It is decided here and nowhere else. The page, the terminal, `answer.json` and `recommendation.sbatch` show it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from relay.comparison.candidates import Candidate, Compared, charged, chosen, compared, least_speed_up
from relay.comparison.columns import Row, told_unit
from relay.comparison.inputs import Inputs, Record
from relay.comparison.left_out import LeftOut, beyond, left_out, may_be_recommended, near_limits, only_on_cpu
from relay.comparison.measured import SettingResult, setting_results
from relay.comparison.neighbours import hardly_timed, neighbours, places
from relay.comparison.quality import Goal, learns_more, stated_goal
from relay.comparison.request import Request, request
from relay.comparison.rules import Rules, rules_of
from relay.comparison.statistics import oddest
from relay.spec.job import Job
from relay.spec.labels import training_of

Certainty = Literal["winner", "likely", "tie", "unclear", "alone", "none"]
ANOTHER = "the settings differ in batch, learning rate or precision, and speed does not compare such trainings"
DISTURBED = 1.2  # times: so far from its setting's others, a repeat was disturbed
SCRIPT = "recommendation.sbatch"  # of the first answer that recommends something


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to ask for to train a task. `best` is None where nothing can be recommended (`none`).

    `trained` is the task's name, with those of its options that the comparison varies: each of their values is another
    model or other data, and has an answer of its own. `script` is the name of the batch script that trains it.
    winner: better than every other beyond doubt. likely: the same, but for `neighbours`, which are the reasons why
    others may have slowed down the runs, `places`, which tell of settings that were measured elsewhere, `limits`, which
    tell what may not keep to a limit, `another`, another training that speed cannot be compared with, `learnt`, the
    setting that learns more, or `short`, which tells what was timed for too short a time. `odd`: a setting, its
    repeat without which another would be recommended, and that one. tie:
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
    goal: Goal | None = None
    best: Candidate | None = None
    job: Job | None = None
    least_minutes: int = 0
    site_flags: Sequence[str] = ()
    script: str = SCRIPT
    others: Sequence[Compared] = ()
    runner_up: Compared | None = None
    left_out: Sequence[LeftOut] = ()
    only_on_cpu: Sequence[str] = ()
    neighbours: Sequence[str] = ()
    places: Sequence[str] = ()
    limits: Sequence[str] = ()
    another: str = ""
    learnt: SettingResult | None = None
    odd: tuple[str, Record, str] | None = None
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
        """What to ask for to train what the answer is for; None where nothing can be recommended."""
        return self.request_of(self.best.epochs / self.best.run.length.epochs) if self.best else None

    def request_of(self, times: float) -> Request | None:
        """What to ask for to train so many times as long as the runs; None where nothing can be recommended."""
        if self.best is None:
            return None
        return request(self.best.run, self.best.summaries, self.job, self.least_minutes, times)

    @property
    def doubts(self) -> list[str]:
        """Why the answer is not certain whatever the intervals say, each reason as a clause."""
        learnt = f"{self.learnt.name} learns more in as many epochs" if self.learnt else ""
        odd = "one repeat decides it" if self.odd else ""
        return [*self.neighbours, *self.places, *self.limits, *filter(None, [self.another, learnt, odd, self.short])]

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
        return min(self.candidates, key=lambda each: (each.spent, -each.rate), default=None)

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
    rules = rules_of(inputs.margin, inputs.rules, [charged(each) for each in results if each.records])
    asked = inputs.config.get("target_accuracy")
    measured = [Candidate(x.row, x.label, x.records, rules) for x in results if may_be_recommended(x.row)]
    several = len({training_of(each.run) for each in measured}) > 1
    goal = stated_goal(measured, asked) if several else None
    measured = [replace(each, goal=goal) for each in measured]
    candidates = [each for each in measured if not beyond(each)]
    over = [LeftOut(each.name, "beyond a limit", why) for each in measured if (why := beyond(each))]
    told: dict[str, Any] = {"task": row["task"], "trained": row["trained"], "rules": rules, "goal": goal}
    told |= {"unit": told_unit(each.row for each in results)}
    told |= {"left_out": [*left_out(results), *over], "only_on_cpu": only_on_cpu(results)}
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
        places=places([(beside, each.other) for each in others for beside in (best, each.against)]),
        limits=near_limits(candidates),
        another=ANOTHER if several and not goal else "",
        learnt=None if goal and asked else learns_more(best, candidates),
        odd=_decisive(best, candidates, rules),
        short=hardly_timed(candidates),
        job=_longest(best, inputs.rules.get("most_minutes") or 0),
        least_minutes=inputs.rules.get("least_minutes") or 0,
        site_flags=inputs.rules.get("site_flags") or (),
        others=others,
        runner_up=next((each for each in others if each.other is next_best), None),
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


def _decisive(best: Candidate, candidates: Sequence[Candidate], rules: Rules) -> tuple[str, Record, str] | None:
    """A repeat far from its setting's others, and what would be recommended without it, where that is another one."""
    for each in candidates:
        odd = oddest(list(each.rates.values()))
        if odd and len(each.rates) > 2 and not 1 / DISTURBED < odd.ratio < DISTURBED:
            record = [record for record in each.records if record.run.repeat in each.rates][odd.place]
            without = replace(each, records=[other for other in each.records if other is not record])
            found = chosen([without if other is each else other for other in candidates], rules)
            if found.run.setting_id != best.run.setting_id:
                return each.name, record, found.name
    return None


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


def _on_more(other: Candidate, best: Candidate) -> bool:
    return other.on_gpus == best.on_gpus and other.size > best.size
