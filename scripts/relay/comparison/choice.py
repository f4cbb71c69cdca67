"""Which candidate is chosen, how the others compare with it, and which cannot be recommended."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relay.base.errors import UserError
from relay.comparison.candidates import Candidate
from relay.comparison.columns import Row, eligible, number
from relay.comparison.setting_result import SettingResult, paired
from relay.comparison.statistics import Estimate, Rounds, band, first_by_pairs, ratio, repeats_to_tell, standing
from relay.spec import strategy_files
from relay.spec.run import Run

BEYOND = ("beyond a limit", "goal not reached")  # categories of candidates that cannot be what is asked for
Relation = Literal["slower", "tie", "does not pay", "cheaper, too slow", "unclear"]


@dataclass(frozen=True)
class LeftOut:
    """A setting that cannot be recommended, and why. `category`: of its row, or one of `BEYOND`."""

    name: str
    category: str
    reason: str


def least_speed_up(costlier: Candidate, cheaper: Candidate) -> float:
    """How many times as fast the costlier one has to be, so that it pays."""
    return max(band(costlier.rules.margin)[1], costlier.rules.efficiency * costlier.cost / cheaper.cost)


def speed_up(one: Candidate, other: Candidate) -> float:
    """How many times as fast as the other one is, by the repeats that were measured beside each other.

    It need not be the quotient of their mean rates: a repeat on a slow day, or one that the other lacks, is in no pair.
    """
    return beside(one, other).value


def fastest(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate than which no other is faster beside it. Of two with one speed, the cheaper one."""
    return first_by_pairs(_in_order(candidates), speed_up)


def chosen(candidates: Sequence[Candidate]) -> Candidate:
    """The fastest candidate that pays against every cheaper one. Of two with one speed, the cheaper one."""

    def pays(each: Candidate) -> bool:  # the cheapest have none to pay against
        cheaper = (other for other in candidates if other.cost < each.cost)
        return all(speed_up(each, other) >= least_speed_up(each, other) for other in cheaper)

    return first_by_pairs(_in_order(candidates), speed_up, pays)


def _in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda each: (-each.rate, each.cost))


@dataclass(frozen=True)
class Compared:
    """How another candidate compares with the recommended one. `ratio`: its time of the training over the other's.

    `hours` are those of the other's training beside the recommended one: by the ratio, as its repeats may have been
    measured on slower days. `against` is the candidate that decides: the recommended one or, for a costlier other that
    pays against that, the cheaper one against which it does not. `repeats_to_tell`: how many of each would tell, where
    it is unclear, those that are there included; None where no reasonable number would.
    """

    other: Candidate
    ratio: Estimate
    relation: Relation
    against: Candidate
    hours: float
    repeats_to_tell: int | None = None

    @property
    def spent(self) -> float:
        """What these hours cost, in the currency of the rules."""
        return self.other.charge(self.hours)


def compared(best: Candidate, other: Candidate, candidates: Sequence[Candidate]) -> Compared:
    """Compare another candidate with the recommended one, which was chosen among these `candidates`.

    slower: at the same cost or a higher one, and not faster. does not pay: costlier, and faster, but not by enough for
    every cheaper one. cheaper, too slow: the recommended one pays against it. tie: equally fast. unclear: the interval
    does not tell.
    """
    among = len(candidates) - 1
    relative = beside(other, best, among)
    against = _hardest(best, other, candidates) if other.cost > best.cost else best
    relation = _relation(best, other, relative, against, among)
    repeats = _repeats_to_tell(other, against, among) if relation == "unclear" else None
    # Of a script, the ratio is that of its speed, and tells nothing of the whole job.
    hours = other.training_hours if other.run.strategy.script else best.training_hours / relative.value
    return Compared(other, relative, relation, against, hours, repeats)


def beside(one: Candidate, other: Candidate, among: int = 1) -> Estimate:
    """How many times as fast as the other one is, of so many such ratios. Between two evaluations, nobody knows."""
    relative = ratio(*_pair(one, other), among)
    if relative.low is None or relative.high is None:
        return relative
    return Estimate(relative.value, relative.low / other.resolution, relative.high * one.resolution)


def _pair(one: Candidate, other: Candidate) -> tuple[Rounds, Rounds]:
    return paired(one.rates, one.repeats, other.rates, other.repeats)


def common_repeats(one: Candidate, other: Candidate) -> int:
    """How many repeats of two candidates were measured beside each other."""
    values, others = _pair(one, other)
    return len(values.keys() & others.keys())


def repeats_for(pairs: int, one: Candidate, other: Candidate) -> int:
    """To which `repeats` has to be set so that two candidates have so many pairs: some repeats may be in none."""
    return max(len(one.repeats), len(other.repeats)) + pairs - common_repeats(one, other)


def _repeats_to_tell(other: Candidate, against: Candidate, among: int) -> int | None:
    """None as well where evaluations are too far apart, which is the same however many repeats there are."""
    relative, edges = speed_up(other, against), _edges(against, other)
    if any(relative / other.resolution < edge < relative * against.resolution for edge in edges):
        return None
    pairs = repeats_to_tell(*_pair(other, against), edges, among)
    return pairs and repeats_for(pairs, other, against)


def _relation(best: Candidate, other: Candidate, relative: Estimate, against: Candidate, among: int) -> Relation:
    if relative.low is None or relative.high is None:
        return "unclear"
    if other.cost < best.cost:
        return "cheaper, too slow" if relative.high < _edges(best, other)[0] else "unclear"
    speed = standing(relative, best.rules.margin)
    if speed in ("tie", "slower"):
        return "tie" if speed == "tie" else "slower"
    if other.cost > best.cost and _shortfall(other, against, among) > 1:
        return "does not pay"
    return "unclear"


def _hardest(best: Candidate, other: Candidate, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate against which a costlier one pays least: the recommended one, if it does not pay against that.

    Where it pays beyond doubt against none, or the intervals do not tell, it is told by the ratios themselves.
    """
    cheaper, among = [each for each in candidates if each.cost < other.cost], len(candidates) - 1
    if _shortfall(other, best, among) > 1:
        return best
    surely = max(cheaper, key=lambda each: _shortfall(other, each, among))
    if _shortfall(other, surely, among) > 1:
        return surely
    return max(cheaper, key=lambda each: least_speed_up(other, each) / speed_up(other, each))


def _shortfall(costlier: Candidate, cheaper: Candidate, among: int) -> float:
    """How many times as fast the costlier one would have to be, at least, to pay. Above 1: it does not, beyond doubt.

    0 where there is no interval, so that nothing is beyond doubt.
    """
    relative = beside(costlier, cheaper, among)
    return least_speed_up(costlier, cheaper) / relative.high if relative.high else 0.0


def _edges(best: Candidate, other: Candidate) -> tuple[float, ...]:
    """The ratios of the other's speed to the best one's at which the answer would change."""
    if other.cost > best.cost:
        return (least_speed_up(other, best),)
    if other.cost < best.cost:
        return (1 / least_speed_up(best, other),)
    return band(best.rules.margin)


def may_be_recommended(row: Row) -> bool:
    """Whether a setting has finished all of its repeats in a measured time, and is proven or cannot be."""
    return eligible(row) and row["repeats"] == row["repeats_planned"]


def left_out(results: Sequence[SettingResult]) -> list[LeftOut]:
    entries = []
    for each in results:
        if not may_be_recommended(each.row):
            what = "not timed" if each.category == "done" else each.category
            reason = " ".join((each.row["reason"] or "no step after the warm-up").split())  # an item of a list
            entries.append(LeftOut(each.name, what, reason))
    return entries


def beyond(each: Candidate) -> LeftOut | None:
    """Why a setting cannot be what is asked for: it does not reach the goal, or takes or costs too much; else None."""
    rules = each.rules
    if each.goal and all(each.row[name] is None for name in ("test_accuracy", "test_loss")):
        why = f"it was never evaluated, so that nobody knows when it reaches {each.goal}"
        return LeftOut(each.name, BEYOND[1], why)
    if not each.reaches_goal:
        return LeftOut(each.name, BEYOND[1], f"not all of its repeats reach {each.goal}")
    hours = each.hours.value  # of all that is asked for, whatever it is ranked by
    if rules.deadline_hours and hours > rules.deadline_hours:
        why = f"it takes {hours:.3g} h, of {rules.deadline_hours:g} h (answer.deadline_hours)"
        return LeftOut(each.name, BEYOND[0], why)
    if rules.budget and each.charge(hours) > rules.budget:
        why = f"it costs {number(each.charge(hours))} {rules.currency}, of {rules.budget:g} (answer.budget)"
        return LeftOut(each.name, BEYOND[0], why)
    return None


def only_on_cpu(results: Sequence[SettingResult]) -> list[str]:
    """Strategies that also work on GPUs, but were measured on CPUs only."""
    measured = [each for each in results if each.row["samples_per_second"]]
    on_gpus = {each.run.strategy.name for each in measured if each.run.shape.device != "cpu"}
    return sorted({each.run.strategy.name for each in measured if _made_for_gpus(each.run)} - on_gpus)


def _made_for_gpus(run: Run) -> bool:
    try:
        return "cuda" in strategy_files.read(Path(run.strategy.file)).devices
    except (OSError, SyntaxError, UserError):
        return True  # the strategy's file is gone; the report then says that no GPU was timed, to be safe
