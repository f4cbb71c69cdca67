"""The settings that may be recommended, what each costs, and how long it trains.

A candidate is proven equivalent, and all of its repeats have finished with finite losses and were timed. What is struck
out, failed, skipped or too short to be timed is no candidate, whatever its speed. Candidates are ranked by the time of
the whole training, starts and evaluations included; trainings of several kinds by the time to a goal.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from relay.comparison.inputs import RunResult
from relay.comparison.request import course
from relay.comparison.setting_result import Goal, SettingResult, rounds_of, seconds_to
from relay.comparison.statistics import MOST_LOG, Estimate, Rounds, geometric_mean, ratio
from relay.spec.job import Job
from relay.spec.site_blocks import Charging, Price, charging

PIECE = 1000  # samples, or steps
LEARNS_LESS = 1.1  # times the errors, or the loss, of another setting: less does not matter
SAMPLES = 1000  # of a test set whose size is not known
POINTS = 0.02  # of the test samples, where a single repeat tells nothing of chance
UNSEEN = 1e6  # times: before the first evaluation, all is possible


@dataclass(frozen=True, kw_only=True)
class Rules(Charging):
    """What decides: the margin of a tie, the least efficiency of more devices, and what these count as.

    The answer is for a training of so many `epochs` (None: as the comparison's). With `deadline_hours` the cheapest is
    asked for that ends within them; with `budget`, in the price's currency or else in core-hours, no more is spent, and
    the fastest is asked for where there is no deadline. `most_minutes`: the longest job that may be asked for.
    """

    margin: float
    least_efficiency: float
    epochs: float | None = None
    deadline_hours: float | None = None
    budget: float | None = None
    most_minutes: int | None = None

    @property
    def efficiency(self) -> float:
        """What part of the cost's growth the speed has to grow by: by 1 the cheapest wins, by 0 the fastest."""
        return 1.0 if self.deadline_hours else 0.0 if self.budget else self.least_efficiency


def rules_of(margin: float, planned: Mapping[str, Any], compared: Iterable[Mapping[str, float]] = ()) -> Rules:
    """The rules that the plan has written down; defaults where an older plan has none. `compared`: CPUs and GPUs."""
    charges = charging(Price.model_validate(planned.get("price") or {}), planned.get("cores_per_gpu"), compared)
    return Rules(
        margin=margin,
        least_efficiency=planned.get("least_efficiency", 0.7),
        cores_per_gpu=charges.cores_per_gpu,
        price=charges.price,
        **{name: planned.get(name) for name in ("epochs", "deadline_hours", "budget", "most_minutes")},
    )


@dataclass(frozen=True)
class Candidate(SettingResult):
    """A setting that may be recommended. `goal`: by the time to what it is measured; None: by the whole training's."""

    rules: Rules
    goal: Goal | None = None

    @cached_property
    def cost(self) -> float:
        """What it occupies, in CPU cores."""
        return self.rules.cores(charged(self))

    @cached_property
    def longest_job(self) -> Job | None:
        """What its jobs asked for, with the most memory of them, and the longest time that one may ask for."""
        jobs = [repeat.job for repeat in self.repeats if repeat.job]
        if not jobs:
            return None
        memory_mb = max((job.memory_mb for job in jobs if job.memory_mb), default=None)
        minutes = max(self.rules.most_minutes or 0, *(job.minutes for job in jobs))
        return replace(jobs[0], memory_mb=memory_mb, minutes=minutes)

    @cached_property
    def rates(self) -> dict[int, float]:
        """By repeat, how many times a second it does what it is measured by. Of a script, what it counts."""
        if self.run.strategy.script:
            return rounds_of(self.repeats)
        timed = [each for each in self.repeats if each.summary and each.speed]
        times = [seconds_to(each, self.goal) if self.goal else self._whole_seconds(each) for each in timed]
        return {each.run.repeat: 1 / seconds for each, seconds in zip(timed, times, strict=True) if seconds}

    def _whole_seconds(self, repeat: RunResult) -> float:
        assert repeat.summary is not None
        summary = repeat.summary
        if self.run.strategy.script:
            return summary.allocated_seconds - (summary.startup_seconds or 0.0)
        minutes = self.longest_job.minutes if self.longest_job else None
        return course(repeat.run, summary).seconds(self.epochs / repeat.run.length.epochs, minutes)

    @property
    def epochs(self) -> float:
        """Those of the training that the answer is for."""
        return self.rules.epochs or self.run.length.epochs

    @property
    def reaches_goal(self) -> bool:
        """Whether all of its repeats reach the goal; true without one."""
        return not self.goal or len(self.rates) == len(self.repeats)

    @property
    def resolution(self) -> float:
        """How many times as soon a repeat may have reached the goal: evaluations before did not look."""
        reached_at = [reached for each in self.repeats if self.goal and (reached := self.goal.reached(each))]
        return max((step / before if before else UNSEEN for step, before in reached_at), default=1.0)

    @cached_property
    def rate(self) -> float:
        """Their geometric mean."""
        return geometric_mean(list(self.rates.values())).value

    @cached_property
    def hours(self) -> Estimate:
        """Those of the whole training, with their interval, also where it is measured by the time to a goal."""
        return geometric_mean([self._whole_seconds(each) / 3600 for each in self.repeats if each.speed])

    @property
    def repeat_hours(self) -> float:
        """How long the jobs of a repeat take."""
        return fmean(each.allocated_seconds for each in self.summaries) / 3600

    @property
    def spent(self) -> float:
        """What the `training_hours` cost, in the currency of the rules."""
        return self.charge(self.training_hours)

    def charge(self, hours: float) -> float:
        """What so many hours cost, in the currency of the rules."""
        return self.cost * hours * (self.rules.core_price or 1.0)

    @property
    def speed(self) -> Estimate:
        """Samples per second."""
        row = self.row
        return Estimate(row["samples_per_second"], row["samples_per_second_low"], row["samples_per_second_high"])

    @property
    def start_seconds(self) -> float:
        """Seconds that a training takes once, however long it is: the repeats' mean."""
        return fmean(course(self.run, summary).once for summary in self.summaries)

    @property
    def beside_steps_seconds(self) -> float:
        """The most seconds that a repeat took beside its steps."""
        return max(its.whole - its.steps for its in (course(self.run, summary) for summary in self.summaries))

    @property
    def on_gpus(self) -> bool:
        """Whether it computes on GPUs."""
        return self.run.shape.device == "cuda"

    @property
    def size(self) -> int:
        """GPUs, or CPU cores."""
        return self.run.shape.taken["gpus" if self.on_gpus else "cpus"]

    @property
    def piece(self) -> str:
        """The piece of work whose time is told: an epoch or, of a script, which has none that is known, another one."""
        script = self.run.strategy.script
        if script is None:
            return "an epoch"
        return "a run of the command" if script.counts == "runs" else f"{PIECE:,} {script.counts}"

    @property
    def seconds_per_piece(self) -> Estimate:
        """Seconds of that piece: of an epoch its steps, without evaluation."""
        script = self.run.strategy.script
        samples = self.run.length.steps_per_epoch * self.run.batch.global_batch_size
        if script:
            samples = 1 if script.counts == "runs" else PIECE
        speed = self.speed
        return Estimate(samples / speed.value, speed.high and samples / speed.high, speed.low and samples / speed.low)

    @property
    def training_hours(self) -> float:
        """Hours of what it is measured by: of the way to the goal or, without one, of the whole training."""
        return 1 / self.rate / 3600 if self.goal else self.hours.value


def charged(setting: SettingResult) -> Mapping[str, int]:
    """The CPUs and GPUs that a setting's jobs are charged for."""
    return setting.repeats[0].planned.taken or setting.run.shape.taken


# What a setting has learnt


@dataclass(frozen=True)
class Doubt:
    """A reason why no answer from these runs is certain, whatever the intervals say.

    Its kind has its words in `workflow/report/certainty.j2`, in which the `facts` stand.
    """

    kind: str
    facts: Mapping[str, Any]


def learns_more(best: SettingResult, settings: Sequence[SettingResult]) -> Iterator[Doubt]:
    """Which settings were never evaluated, though others were; and which has learnt most, if more than `best`.

    By the share of the test samples that are wrong, or else by the test loss, of each repeat, which has a seed of its
    own. More has to be more than chance. Where neither has repeats: more than `POINTS` of the samples, or a tenth of
    the loss.
    """
    by_accuracy = any(each.row["test_accuracy"] is not None for each in settings)
    lost = _lost(settings, "test_accuracy" if by_accuracy else "test_loss")
    evaluated = [each for each in settings if lost[id(each)]]
    if evaluated and len(evaluated) < len(settings):
        yield Doubt("not evaluated", {"names": [each.name for each in settings if not lost[id(each)]]})
    if not lost[id(best)]:
        return
    most = min(evaluated, key=lambda each: math.fsum(lost[id(each)].values()) / len(lost[id(each)]))
    if most is best:
        return
    relative = ratio(lost[id(best)], lost[id(most)], len(evaluated) - 1)
    if relative.low is None and by_accuracy:
        less = max(lost[id(best)].values()) - min(lost[id(most)].values()) > POINTS
    else:
        less = relative.value > LEARNS_LESS and (relative.low is None or relative.low > 1)
    if less:
        yield Doubt("learns more", {"name": most.name, "row": most.row})


def _lost(settings: Sequence[SettingResult], column: str) -> dict[int, Rounds]:
    """For each setting, by repeat, the share of the test samples that are wrong, or the test loss; all above 0.

    Where no sample is wrong, half a sample is, because 0 has no ratio. Losses below 0 are logarithms of probabilities:
    these are compared.
    """
    values = {
        id(each): {x.run.repeat: getattr(x.summary, column) for x in each.repeats if x.summary} for each in settings
    }
    values = {key: {n: value for n, value in its.items() if value is not None} for key, its in values.items()}
    least = 0.5 / (settings[0].run.dataset.test_count or SAMPLES)
    below_0 = any(value <= 0 for its in values.values() for value in its.values())

    def positive(value: float) -> float:
        if column == "test_accuracy":
            return max(1 - value, least)
        return math.exp(max(-MOST_LOG, min(value, MOST_LOG))) if below_0 else value

    return {key: {n: positive(value) for n, value in its.items()} for key, its in values.items()}
