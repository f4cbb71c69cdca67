"""The settings that may be recommended, what each costs, and how two of them compare.

A candidate is proven equivalent, and all of its repeats have finished with finite losses and were timed. What is struck
out, failed, skipped or too short to be timed is no candidate, whatever its speed. Candidates are ranked by the time of
the whole training, starts and evaluations included.

Cost is counted in CPU cores, for an hour of a GPU and of a CPU core cannot be added up otherwise. A GPU counts as the
cores that the site shares out with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from relay.comparison.measured import SettingResult
from relay.comparison.statistics import Estimate, band, geometric_mean, ratio, repeats_to_tell, standing
from relay.comparison.whole import once_seconds, whole_seconds
from relay.spec.run import Run

PIECE = 1000  # samples, or steps
CORES_PER_GPU = 12  # where a site does not say: four GPUs beside 48 cores are usual

Relation = Literal["slower", "tie", "does not pay", "cheaper, too slow", "unclear"]


@dataclass(frozen=True)
class Rules:
    """What decides: the margin of a tie, the least efficiency of more devices, the cores that a GPU counts as."""

    margin: float
    least_efficiency: float
    cores_per_gpu: int


@dataclass(frozen=True)
class Candidate(SettingResult):
    """A setting that may be recommended, and what it occupies, in CPU cores."""

    cost: float

    @property
    def rates(self) -> list[float]:
        """Trainings per second, whole ones, by repeat. Of a script, whose length is not known, what it counts."""
        if self.run.strategy.script:
            return self.speeds
        timed = [record for record in self.records if record.summary and record.speed]
        return [1 / whole_seconds(record.run, record.summary or {}) for record in timed]

    @property
    def rate(self) -> float:
        """Their geometric mean."""
        return geometric_mean(self.rates).value

    @property
    def speed(self) -> Estimate:
        """Samples per second."""
        row = self.row
        return Estimate(row["samples_per_second"], row["samples_per_second_low"], row["samples_per_second_high"])

    @property
    def start_and_epoch(self) -> tuple[float, float]:
        """Seconds that a training takes once, and for each epoch with its evaluations and saves: the repeats' means."""
        once = fmean(once_seconds(summary) for summary in self.summaries)
        return once, (1 / self.rate - once) / self.run.length.epochs

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
        """Hours of the whole training; of a script, of the whole command."""
        if self.run.strategy.script:
            held = [s["allocated_seconds"] - s["startup_seconds"] for s in self.summaries]
            return math.fsum(held) / len(held) / 3600
        return 1 / self.rate / 3600


def ends_first_from(other: Candidate, best: Candidate, margin: float) -> float | None:
    """From how many epochs on another candidate ends its training before the best one; None where it never does."""
    if other.run.strategy.script or best.run.strategy.script:
        return None
    (start, epoch), (other_start, other_epoch) = best.start_and_epoch, other.start_and_epoch
    if other_epoch >= epoch * band(margin)[0] or other_start <= start:
        return None
    return (other_start - start) / (epoch - other_epoch)


def cores(run: Run) -> int:
    """The CPU cores of all nodes."""
    return run.shape.nodes * run.shape.cpus_per_node


def gpus(run: Run) -> int:
    """The GPUs of all nodes."""
    return run.shape.nodes * run.shape.gpus_per_node


def cost(run: Run, rules: Rules) -> float:
    """What the run occupies, in CPU cores."""
    return float(max(cores(run), gpus(run) * rules.cores_per_gpu))


def least_speed_up(costlier: Candidate, cheaper: Candidate, rules: Rules) -> float:
    """How many times as fast the costlier one has to be, so that it pays."""
    return max(band(rules.margin)[1], rules.least_efficiency * costlier.cost / cheaper.cost)


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
    found = ratio(other.rates, best.rates)
    against = _hardest(best, other, candidates, rules) if other.cost > best.cost else best
    relation = _relation(best, other, found, against, rules)
    edges = _edges(against, other, rules)
    repeats = repeats_to_tell(other.rates, against.rates, edges) if relation == "unclear" else None
    return Compared(other, found, relation, against, repeats)


def _relation(best: Candidate, other: Candidate, found: Estimate, against: Candidate, rules: Rules) -> Relation:
    if found.low is None or found.high is None:
        return "unclear"
    if other.cost < best.cost:
        return "cheaper, too slow" if found.high < _edges(best, other, rules)[0] else "unclear"
    speed = standing(found, rules.margin)
    if speed in ("tie", "slower"):
        return "tie" if speed == "tie" else "slower"
    if other.cost > best.cost and _shortfall(other, against, rules) > 1:
        return "does not pay"
    return "unclear"


def _hardest(best: Candidate, other: Candidate, candidates: Sequence[Candidate], rules: Rules) -> Candidate:
    """The candidate against which a costlier one pays least: the recommended one, if it does not pay against that."""
    if _shortfall(other, best, rules) > 1:
        return best
    return max((each for each in candidates if each.cost < other.cost), key=lambda x: _shortfall(other, x, rules))


def _shortfall(costlier: Candidate, cheaper: Candidate, rules: Rules) -> float:
    """How many times as fast the costlier one would have to be, at least, to pay. Above 1: it does not, beyond doubt.

    0 where there is no interval, so that nothing is beyond doubt.
    """
    found = ratio(costlier.rates, cheaper.rates)
    return least_speed_up(costlier, cheaper, rules) / found.high if found.high else 0.0


def _edges(best: Candidate, other: Candidate, rules: Rules) -> tuple[float, ...]:
    """The ratios of the other's speed to the best one's at which the answer would change."""
    if other.cost > best.cost:
        return (least_speed_up(other, best, rules),)
    if other.cost < best.cost:
        return (1 / least_speed_up(best, other, rules),)
    return band(rules.margin)


def rules_of(margin: float, told: Mapping[str, Any]) -> Rules:
    """The rules that the plan has written down; defaults where an older plan has none."""
    return Rules(margin, told.get("least_efficiency", 0.7), told.get("cores_per_gpu") or CORES_PER_GPU)
