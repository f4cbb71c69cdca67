"""The answer of a comparison: what to ask Slurm for, why, how sure it is, and what was not measured.

It is decided in `decision` and `choice`. The page, the terminal, `answer.json` and `recommendation.sbatch` show it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from relay.base.grouped import grouped
from relay.comparison.candidates import Candidate, Doubt, Rules, charged
from relay.comparison.choice import Compared, LeftOut, chosen, fastest, least_speed_up, speed_up
from relay.comparison.request import Request, request
from relay.comparison.setting_result import Goal
from relay.comparison.statistics import band

Certainty = Literal["winner", "likely", "tie", "unclear", "alone", "none"]
NEIGHBOURS = ("virtual", "shared nodes", "quota", "other programs")  # doubts of what else has computed there
DISTURBED = 1.2  # times: so far from its setting's others, a repeat was disturbed
FAR_APART = 2  # times: so far apart, repeats of one setting were disturbed
SCRIPT = "recommendation.sbatch"  # of the first answer that recommends something


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to ask for to train a task. `best` is None where nothing can be recommended (`none`).

    `trained` is the task's name, with those of its options that the comparison varies: each of their values is another
    model or other data, and has an answer of its own. `script` is the name of the batch script that trains it, and
    `file_name` a part of its files' names, such as 'discs-width-8'.
    winner: better than every other beyond doubt. likely: the same, but for the `doubts`, which no repeats show. tie:
    `tied` are as fast at the same cost or a higher one. unclear: the intervals do not tell; with `repeats_to_tell` of
    each they would (None: not with a reasonable number). alone: nothing else was measured and proven. `least_minutes`
    is the shortest job that the cluster wants. `site_flags`: flags of sbatch that all jobs of the site have. `beyond`:
    candidates that a limit leaves out.
    """

    task: str
    trained: str
    unit: str
    rules: Rules
    certainty: Certainty
    goal: Goal | None = None
    best: Candidate | None = None
    least_minutes: int = 0
    site_flags: Sequence[str] = ()
    script: str = SCRIPT
    file_name: str = ""
    others: Sequence[Compared] = ()
    runner_up: Compared | None = None
    left_out: Sequence[LeftOut] = ()
    beyond: Sequence[Candidate] = ()
    only_on_cpu: Sequence[str] = ()
    doubts: Sequence[Doubt] = ()

    @property
    def one_of_several(self) -> bool:
        """Whether the comparison has further answers for the same task, with other options."""
        return self.trained != self.task

    @property
    def test_loss(self) -> float:
        """The test loss of the recommended setting; infinity where there is none."""
        loss = self.best.row["test_loss"] if self.best else None
        return math.inf if loss is None else float(loss)

    @property
    def compared_by(self) -> str:
        """By what candidates are compared."""
        if self.goal:
            return f"the time to {self.goal}"
        return "the time of the whole training" if self.over else "the speed"

    @property
    def over(self) -> str:
        """Over what candidates are compared, behind "times as fast"; '' of a script, which is compared by its speed."""
        if self.goal:
            return f" on the way to {self.goal}"
        script = self.best and self.best.run.strategy.script
        return "" if script else " over the whole training, starts included"

    @cached_property
    def request(self) -> Request | None:
        """What to ask for to train what the answer is for; None where nothing can be recommended."""
        return self.request_of(self.best.epochs / self.best.run.length.epochs) if self.best else None

    def request_of(self, times: float) -> Request | None:
        """What to ask for to train so many times as long as the runs; None where nothing can be recommended."""
        if self.best is None:
            return None
        return request(self.best.run, self.best.summaries, self.best.longest_job, self.least_minutes, times)

    @property
    def tied(self) -> list[Compared]:
        """The others that are as fast."""
        return [each for each in self.others if each.relation == "tie"]

    @property
    def unclear(self) -> list[Compared]:
        """The others of which the intervals do not tell whether they are better."""
        return [each for each in self.others if each.relation == "unclear"]

    @property
    def repeats_to_tell(self) -> int | None:
        """How many repeats of each setting would tell; None where none are needed, or more would hardly help."""
        each_wants = [each.repeats_to_tell for each in self.unclear]
        in_vain = self.spread >= FAR_APART and any(each.kind in NEIGHBOURS for each in self.doubts)
        return None if in_vain or not all(each_wants) else max((n for n in each_wants if n), default=None)

    @property
    def lost(self) -> list[str]:
        """The names of settings that might have been better, but gave no result."""
        return [each.name for each in self.left_out if each.category in ("failed", "not timed")]

    @property
    def candidates(self) -> list[Candidate]:
        """The recommended setting, and all others that could have been it."""
        return [self.best, *(each.other for each in self.others)] if self.best else []

    @cached_property
    def fastest(self) -> Candidate | None:
        """The fastest candidate, which need not be the recommended one."""
        return fastest(self.candidates) if self.best else None

    @property
    def faster(self) -> Compared | None:
        """The fastest candidate beside the recommended one; None where that is the fastest."""
        return next((each for each in self.others if each.other is self.fastest), None)

    @property
    def cheapest_other(self) -> Compared | None:
        """The other whose whole training costs least; of two that cost the same, the faster one."""
        return min(self.others, key=lambda each: (each.spent, each.hours), default=None)

    @property
    def cheapest(self) -> Candidate | None:
        """The same of all candidates."""
        best, other = self.best, self.cheapest_other
        if best and other and (other.spent, other.hours) < (best.spent, best.training_hours):
            return other.other
        return best

    @property
    def has_fewer(self) -> bool:
        """Whether a candidate on fewer devices of the kind that is recommended was measured."""
        best = self.best
        return best is not None and any(_on_more(best, each.other) for each in self.others)

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
        best_there = chosen([each.other for each in other])
        return next(each for each in other if each.other is best_there)

    @property
    def turning_price(self) -> float:
        """The cost of a GPU's hour, in hours of a CPU core, below which a setting on GPUs pays against all on CPUs."""

        def between(gpu: Candidate, cpu: Candidate) -> float:
            ratio, (low, high) = speed_up(gpu, cpu), band(self.rules.margin)
            worth = ratio * self.rules.efficiency ** (1 if ratio < 1 else -1)
            if low < ratio < high:  # as fast: the cheaper one is recommended
                worth = 1.0
            return worth * cpu.cost / charged(gpu)["gpus"]

        on_cpus = [each for each in self.candidates if not each.on_gpus]
        return max(min(between(gpu, cpu) for cpu in on_cpus) for gpu in self.candidates if gpu.on_gpus)

    def turns_at(self, compared: Compared) -> float:
        """How many times as fast as the recommended one another candidate would have to be, to be recommended."""
        assert self.best is not None
        if compared.other.cost < self.best.cost:
            return 1 / least_speed_up(self.best, compared.other)
        return least_speed_up(compared.other, compared.against) * speed_up(compared.against, self.best)

    @property
    def ends_first(self) -> Iterator[tuple[Candidate, bool, float]]:
        """Which other setting ends first for more epochs, and which for fewer, and from how many on.

        Of several, that whose number of epochs is nearest to the one asked for. True stands for more.
        """
        best = self.best
        assert best is not None
        others = self.others if self.over and not self.goal else ()
        ends = [(_same_end(each, best, self.rules.margin) or 0.0, each.other) for each in others]
        for more in (True, False):
            beyond = [each for each in ends if each[0] > 1 and (each[0] > best.epochs) is more]
            if beyond:
                epochs, other = min(beyond, key=lambda each: abs(each[0] - best.epochs))
                yield other, more, epochs

    @property
    def undecided(self) -> list[Candidate]:
        """The recommended setting, and all others of which the intervals do not tell whether they are better."""
        return [*filter(None, [self.best]), *(each.other for each in self.unclear)]

    @property
    def groups_of_unclear(self) -> list[list[Compared]]:
        """Those that cost the same and would begin to be better at the same speed, together.

        What is nearest to that comes first.
        """
        nearest = sorted(self.unclear, key=lambda each: self.turns_at(each) / each.ratio.value)
        return [*grouped(nearest, lambda each: (each.other.cost, self.turns_at(each))).values()]

    @property
    def widest(self) -> Candidate:
        """That of the `undecided` whose repeats are farthest apart."""
        return max(self.undecided, key=_spread)

    @property
    def spread(self) -> float:
        """How many times as fast as the slowest its fastest repeat was; 1 where nothing can be recommended."""
        return _spread(self.widest) if self.best else 1.0

    @property
    def hours_to_tell(self) -> float:
        """How long the repeats take that would tell: the call makes them of every setting, as long as those before."""
        missing = [max(0, (self.repeats_to_tell or 0) - len(each.repeats)) for each in self.candidates]
        return sum(count * each.repeat_hours for count, each in zip(missing, self.candidates, strict=True))


def _same_end(compared: Compared, best: Candidate, margin: float) -> float | None:
    """With how many epochs another setting ends when the best one does, and for more, or for fewer, before it.

    None where it never does. None as well for chains of jobs, whose starts grow with the training: they take nothing
    once.
    """
    start, other_start = best.start_seconds, compared.other.start_seconds
    epoch, other_epoch = (
        (seconds - once) / best.epochs
        for seconds, once in ((1 / best.rate, start), (1 / best.rate / compared.ratio.value, other_start))
    )
    alike = band(margin)[0] * max(epoch, other_epoch) <= min(epoch, other_epoch)
    if alike or not start or not other_start or (start < other_start) is (epoch < other_epoch):
        return None
    epochs = (other_start - start) / (epoch - other_epoch)
    longest = 60 * best.longest_job.minutes if best.longest_job else math.inf
    if start + epoch * max(epochs, best.epochs) > longest:
        return None
    return epochs if (epochs > best.epochs) is (start < other_start) else None


def _spread(candidate: Candidate) -> float:
    return max(candidate.speeds) / min(candidate.speeds)


def _on_more(other: Candidate, best: Candidate) -> bool:
    return other.on_gpus == best.on_gpus and other.size > best.size
