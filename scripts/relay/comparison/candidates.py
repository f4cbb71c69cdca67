"""The settings that may be recommended, what each costs, and how two of them compare.

A candidate is proven equivalent, and all of its repeats have finished with finite losses and were timed. What is struck
out, failed, skipped or too short to be timed is no candidate, whatever its speed. Candidates are ranked by the time of
the whole training, starts and evaluations included; trainings of several kinds by the time to a goal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

from relay.comparison.inputs import Record
from relay.comparison.measured import SettingResult
from relay.comparison.quality import Goal, seconds_to
from relay.comparison.rounds import paired
from relay.comparison.rules import Rules
from relay.comparison.statistics import Estimate, band, geometric_mean, ratio, repeats_to_tell, standing
from relay.comparison.whole import once_seconds, whole_seconds
from relay.spec.run import Run

PIECE = 1000  # samples, or steps
UNSEEN = 1e6  # times: before the first evaluation, all is possible

Relation = Literal["slower", "tie", "does not pay", "cheaper, too slow", "unclear"]


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
    def rates(self) -> dict[int, float]:
        """By repeat, how many times a second it does what it is measured by. Of a script, what it counts."""
        if self.run.strategy.script:
            return self.rounds
        times = {each.run.repeat: self._seconds(each) for each in self.records if each.summary and each.speed}
        return {repeat: 1 / seconds for repeat, seconds in times.items() if seconds}

    def _seconds(self, record: Record) -> float | None:
        if self.goal:
            return seconds_to(record, self.goal)
        return self._whole_seconds(record)

    def _whole_seconds(self, record: Record) -> float:
        summary = record.summary or {}
        if self.run.strategy.script:
            return float(summary["allocated_seconds"] - summary["startup_seconds"])
        return whole_seconds(record.run, summary, self.epochs / record.run.length.epochs)

    @property
    def epochs(self) -> float:
        """Those of the training that the answer is for."""
        return self.rules.epochs or self.run.length.epochs

    @property
    def resolution(self) -> float:
        """How many times as soon a repeat may have reached the goal: evaluations before did not look."""
        found = [reached for each in self.records if self.goal and (reached := self.goal.reached(each))]
        return max((step / before if before else UNSEEN for step, before in found), default=1.0)

    @cached_property
    def rate(self) -> float:
        """Their geometric mean."""
        return geometric_mean(list(self.rates.values())).value

    @cached_property
    def hours(self) -> Estimate:
        """Those of the whole training, with their interval, also where it is measured by the time to a goal."""
        return geometric_mean([self._whole_seconds(each) / 3600 for each in self.records if each.speed])

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
    def start_and_epoch(self) -> tuple[float, float]:
        """Seconds that a training takes once, and for each epoch with its evaluations and saves: the repeats' means."""
        once = fmean(once_seconds(summary) for summary in self.summaries)
        return once, (1 / self.rate - once) / self.epochs

    @property
    def on_gpus(self) -> bool:
        """Whether it computes on GPUs."""
        return self.run.shape.device == "cuda"

    @property
    def size(self) -> int:
        """GPUs, or CPU cores."""
        return gpus(self.run) if self.on_gpus else cores(self.run)

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
        if speed.low is None or speed.high is None:
            return Estimate(samples / speed.value)
        return Estimate(samples / speed.value, samples / speed.high, samples / speed.low)

    @property
    def training_hours(self) -> float:
        """Hours of what it is measured by: of the way to the goal or, without one, of the whole training."""
        return 1 / self.rate / 3600 if self.goal else self.hours.value


def ends_first_from(other: Candidate, best: Candidate, margin: float) -> float | None:
    """From how many epochs on another candidate ends its training before the best one; None where it never does.

    None as well for chains of jobs, whose starts grow with the training: they take nothing once.
    """
    if other.run.strategy.script or best.run.strategy.script or best.goal:
        return None
    (start, epoch), (other_start, other_epoch) = best.start_and_epoch, other.start_and_epoch
    if other_epoch >= epoch * band(margin)[0] or other_start <= start or not start:
        return None
    return (other_start - start) / (epoch - other_epoch)


def cores(run: Run) -> int:
    """The CPU cores of all nodes."""
    return run.shape.nodes * run.shape.cpus_per_node


def gpus(run: Run) -> int:
    """The GPUs of all nodes."""
    return run.shape.nodes * run.shape.gpus_per_node


def taken(run: Run) -> dict[str, int]:
    """What it occupies where no plan tells more: CPUs and GPUs."""
    return {"cpus": cores(run), "gpus": gpus(run)}


def charged(setting: SettingResult) -> Mapping[str, int]:
    """The CPUs and GPUs that a setting's jobs are charged for."""
    return setting.records[0].taken or taken(setting.run)


def least_speed_up(costlier: Candidate, cheaper: Candidate, rules: Rules) -> float:
    """How many times as fast the costlier one has to be, so that it pays."""
    return max(band(rules.margin)[1], rules.efficiency * costlier.cost / cheaper.cost)


def pays(candidate: Candidate, cheaper: Candidate, rules: Rules) -> bool:
    """Whether it trains so much faster than a cheaper one that its cost is worth it, as far as was measured."""
    return candidate.rate / cheaper.rate >= least_speed_up(candidate, cheaper, rules)


def chosen(candidates: Sequence[Candidate], rules: Rules) -> Candidate:
    """The fastest candidate that pays against every cheaper one. Of two with one speed, the cheaper one."""
    fastest_first = sorted(candidates, key=lambda each: (-each.rate, each.cost))
    return next(
        each
        for each in fastest_first  # the fastest of the cheapest has none to pay against
        if all(pays(each, other, rules) for other in candidates if other.cost < each.cost)
    )


@dataclass(frozen=True)
class Compared:
    """How another candidate compares with the recommended one. `ratio`: its time of the training over the other's.

    `against` is the candidate that decides: the recommended one or, for a costlier other that pays against that, the
    cheaper one against which it does not. `repeats`: how many of each would tell, where it is unclear; None where no
    reasonable number would.
    """

    other: Candidate
    ratio: Estimate
    relation: Relation
    against: Candidate
    repeats: int | None = None


def compared(best: Candidate, other: Candidate, candidates: Sequence[Candidate], rules: Rules) -> Compared:
    """Compare another candidate with the recommended one, which was chosen among these `candidates`.

    slower: at the same cost or a higher one, and not faster. does not pay: costlier, and faster, but not by enough for
    every cheaper one. cheaper, too slow: the recommended one pays against it. tie: equally fast. unclear: the interval
    does not tell.
    """
    found, among = beside(other, best, len(candidates) - 1), len(candidates) - 1
    against = _hardest(best, other, candidates, rules) if other.cost > best.cost else best
    relation = _relation(best, other, found, against, rules, among)
    edges = _edges(against, other, rules)
    pair = paired(other.rates, other.records, against.rates, against.records)
    repeats = repeats_to_tell(*pair, edges, among) if relation == "unclear" else None
    return Compared(other, found, relation, against, repeats)


def beside(one: Candidate, other: Candidate, among: int) -> Estimate:
    """How many times as fast as the other one is, of so many such ratios. Between two evaluations, nobody knows."""
    found = ratio(*paired(one.rates, one.records, other.rates, other.records), among)
    if found.low is None or found.high is None:
        return found
    return Estimate(found.value, found.low / other.resolution, found.high * one.resolution)


def _relation(
    best: Candidate, other: Candidate, found: Estimate, against: Candidate, rules: Rules, among: int
) -> Relation:
    if found.low is None or found.high is None:
        return "unclear"
    if other.cost < best.cost:
        return "cheaper, too slow" if found.high < _edges(best, other, rules)[0] else "unclear"
    speed = standing(found, rules.margin)
    if speed in ("tie", "slower"):
        return "tie" if speed == "tie" else "slower"
    if other.cost > best.cost and _shortfall(other, against, rules, among) > 1:
        return "does not pay"
    return "unclear"


def _hardest(best: Candidate, other: Candidate, candidates: Sequence[Candidate], rules: Rules) -> Candidate:
    """The candidate against which a costlier one pays least: the recommended one, if it does not pay against that."""
    cheaper, among = [each for each in candidates if each.cost < other.cost], len(candidates) - 1
    if _shortfall(other, best, rules, among) > 1:
        return best
    return max(cheaper, key=lambda each: _shortfall(other, each, rules, among))


def _shortfall(costlier: Candidate, cheaper: Candidate, rules: Rules, among: int) -> float:
    """How many times as fast the costlier one would have to be, at least, to pay. Above 1: it does not, beyond doubt.

    0 where there is no interval, so that nothing is beyond doubt.
    """
    found = beside(costlier, cheaper, among)
    return least_speed_up(costlier, cheaper, rules) / found.high if found.high else 0.0


def _edges(best: Candidate, other: Candidate, rules: Rules) -> tuple[float, ...]:
    """The ratios of the other's speed to the best one's at which the answer would change."""
    if other.cost > best.cost:
        return (least_speed_up(other, best, rules),)
    if other.cost < best.cost:
        return (1 / least_speed_up(best, other, rules),)
    return band(rules.margin)
