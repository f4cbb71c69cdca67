"""What speaks against a setting's results: why it is struck out though it was trained, and what the table warns of.

Struck out: what its gate says, and where that has judged something else than what ran. Warned of, which is no verdict:
repeats of other code, data or libraries than most, and results that are far from those of the others that train the
same.

Peers train the same task with the same global batch and learning rate for the same epochs. A setting is held against
the median of all of them. It is an outlier beyond `SPREADS` times their spread between repeats, and beyond a floor:
within it, differences of rounding move a training that is all right. Scripts are compared by the losses that they
print, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Any

from relay.base.grouped import gathered, grouped
from relay.comparison.columns import listing, number, percent
from relay.comparison.inputs import RunResult
from relay.comparison.statistics import t_quantile
from relay.run_folder.proof_notes import COMPUTING
from relay.run_folder.summary import Summary
from relay.run_folder.verdicts import refuses
from relay.spec.labels import comparable, flat, options_text
from relay.spec.run import Run

PROVEN = (*COMPUTING, "dataset")
ALL = (*PROVEN, "training code")
DIGITS = 8  # of a digest, shown
OTHER_CODE = "the code gated is not the code that ran"
Versions = Mapping[str, Any]


def refusals(group: Sequence[RunResult]) -> list[str]:
    """Why a setting is struck out: what its gate says, and what is found against runs that its own went on from."""
    return [*_of_the_gate(group), *by_repeat(group, lambda repeat: "; ".join(repeat.inherited))]


def _of_the_gate(group: Sequence[RunResult]) -> list[str]:
    """The gate's problems, or that it has judged something else than what ran."""
    verdict = group[0].verdict
    assert verdict is not None
    if not proven(group):
        other = ran_other_code(group)
        return by_repeat(group, lambda repeat: OTHER_CODE if repeat in other else proven_otherwise(repeat))
    if not refuses(verdict):
        return []
    failed = [f"{part['name']} failed" for part in verdict["parts"] if not part["passed"]]
    return list(map(str, verdict["problems"])) or failed or ["the equivalence gate failed"]


def ran_other_code(group: Sequence[RunResult]) -> list[RunResult]:
    """The repeats that ran, or run, other code of the strategy than the gate has judged."""
    verdict = group[0].verdict
    judged = verdict["strategy_source"] if verdict else None  # None: no code at all, as of scripts
    return [repeat for repeat in group if judged and repeat.strategy_source not in (None, judged)]


def proven(group: Sequence[RunResult]) -> bool:
    """Whether the gate's verdict is on what the repeats ran: their code, data and libraries."""
    return not ran_other_code(group) and not any(map(proven_otherwise, group))


def by_repeat(group: Sequence[RunResult], reason: Callable[[RunResult], str]) -> list[str]:
    """Each reason with the repeats that have it, such as 'repeats 1 and 3: …' or 'all 3 repeats: …'."""
    repeats_of = gathered((text, repeat.run.repeat + 1) for repeat in group if (text := reason(repeat)))
    return [f"{_repeats(repeats, len(group))}{text}" for text, repeats in repeats_of.items()]


def _repeats(numbers: Sequence[int], count: int) -> str:
    if len(numbers) == count:
        return f"all {count} repeats: " if count > 1 else ""
    return f"{'repeat' if len(numbers) == 1 else 'repeats'} {listing([*map(str, numbers)])}: "


def made_with(source: Summary | Mapping[str, Any]) -> Versions:
    """What a summary or a verdict says that it was made with; what it does not say is left out."""
    values = vars(source) if isinstance(source, Summary) else source
    versions = {name: version for name, version in (values.get("versions") or {}).items() if name in COMPUTING}
    digests = {"dataset": values.get("dataset"), "training code": values.get("training_source")}
    return versions | {name: digest[:DIGITS] for name, digest in digests.items() if digest}


def difference(one: Versions, other: Versions, names: Sequence[str] = ALL) -> str:
    """In what the first differs from the second, such as 'torch 2.12.0, not 2.13.0'; '' where they agree."""
    differing = [name for name in names if name in one and name in other and one[name] != other[name]]
    return ", ".join(f"{name} {one[name]}, not {other[name]}" for name in differing)


def proven_otherwise(repeat: RunResult) -> str:
    """Why a run is not proven by its gate's verdict, which was made with other libraries or data; '' where it is."""
    if repeat.summary is None or repeat.verdict is None:
        return ""
    other = difference(made_with(repeat.verdict), made_with(repeat.summary), PROVEN)
    if not other:
        return ""
    again = f"`rm -r results/equivalence/gates/{repeat.planned.gate}` lets it be proven again"
    return f"proven with other versions than it ran with: {other}; {again}"


def mixed(groups: Mapping[str, Sequence[RunResult]]) -> dict[str, str]:
    """A warning for each setting, by id, of which repeats are of other code, data or libraries than most of its task.

    `groups` has the repeats of the settings.
    """
    runs = (each for group in groups.values() for each in group)
    by_task = gathered((each.run.task.name, made_with(each.summary)) for each in runs if each.summary)
    usual = {task: _most_common(of_task) for task, of_task in by_task.items()}
    lines = {name: list(_otherwise(group, usual.get(group[0].run.task.name, {}))) for name, group in groups.items()}
    return {setting: "; ".join(its) for setting, its in lines.items() if its}


def _otherwise(group: Sequence[RunResult], usual: Versions) -> Iterator[str]:
    """A text for each way in which repeats differ from what is usual in the table."""
    finished = [(repeat.run.repeat + 1, made_with(repeat.summary)) for repeat in group if repeat.summary]
    repeats = gathered((other, repeat) for repeat, versions in finished if (other := difference(versions, usual)))
    for other, numbers in repeats.items():
        which = "" if len(numbers) == len(finished) else f"repeat {', '.join(map(str, numbers))}: "
        yield f"{which}of another version than other rows: {other}"


def _most_common(alike: Sequence[Versions]) -> Versions:
    """What most were made with; what none tells is left out."""
    values_by_name = {name: [each[name] for each in alike if name in each] for name in ALL}
    return {name: Counter(values).most_common(1)[0][0] for name, values in values_by_name.items() if values}


SPREADS = 5.0  # standard deviations between repeats
# With few repeats the spread itself is uncertain: Student's t at this level where that is more than `SPREADS`.
CONFIDENCE = 0.999
LAST_PART = 4  # the last quarter of a curve: a single printed loss is that of one batch
FIRST_PART = 20  # the first twentieth
FAR = 0.3  # of the loss: noise does not make such a difference, nor does a training that learns little
FALLEN = 0.02  # of the first loss: by less, it has not fallen
LEAST_STEPS = 50  # of a training: in fewer, much learns nothing yet


@dataclass(frozen=True)
class Scale:
    """How a figure is compared: `floor` where the peers' spread is known, `alone` where each has one repeat."""

    name: str
    floor: float
    alone: float
    logarithmic: bool = False

    def word(self, value: float) -> str:
        """The value as people read it."""
        return f"{value:.3g}" if self.logarithmic else percent(value)

    def value(self, repeat: RunResult) -> float | None:
        """The figure of a repeat, where it has one."""
        return _end(repeat) if self is LAST else getattr(repeat.summary, self.name.replace(" ", "_"), None)


ACCURACY = Scale("test accuracy", floor=0.01, alone=0.1)
# For tasks without classes. In logarithms: a tenth, and a factor of two.
LOSS = Scale("test loss", floor=math.log(1.1), alone=math.log(2), logarithmic=True)
# Of scripts, of whose losses the last ones are compared.
LAST = Scale("last training loss", floor=math.log(1.1), alone=math.log(1.1), logarithmic=True)


def outliers(groups: Mapping[str, Sequence[RunResult]]) -> dict[str, str]:
    """A warning for each setting, by its id, whose mean result is far from its peers'.

    `groups` has the finished repeats of the settings that may be compared, by the setting's id.
    """

    def trains(setting: str) -> str:
        run = groups[setting][0].run  # whose task has the scaled learning rate
        if run.strategy.script:
            return repr((run.task.name, run.batch.global_batch_size, options_text(run.strategy.options)))
        return repr((run.task, run.dataset, run.batch.global_batch_size, run.length.epochs))

    warnings = gathered(
        warning
        for alike in grouped(groups, trains).values()
        for scale in _scales(groups[alike[0]][0].run)
        for warning in _among({each: groups[each] for each in alike}, scale)
    )
    return {setting: "; ".join(its) for setting, its in warnings.items()}


def _scales(run: Run) -> Iterator[Scale]:
    yield ACCURACY if "accuracy" in run.task.metrics else LOSS
    if run.strategy.script and run.task.unit != "runs":  # of what counts runs, nobody has told the global batch
        yield LAST


def _among(peers: Mapping[str, Sequence[RunResult]], scale: Scale) -> Iterator[tuple[str, str]]:
    """The outliers among settings that train the same."""
    every = {each: [x for repeat in group if (x := scale.value(repeat)) is not None] for each, group in peers.items()}
    values = {setting: figures for setting, figures in every.items() if figures}
    above_0 = not any(value <= 0 for figures in values.values() for value in figures)
    # Losses below 0 are logarithms already.
    scaled = {each: [*map(math.log, its)] if scale.logarithmic and above_0 else its for each, its in values.items()}
    means = {setting: fmean(figures) for setting, figures in scaled.items()}
    for setting, own in values.items():
        others = [other for other in values if other != setting]
        if not others:
            continue
        # Of two, neither is known to be wrong.
        middle = median(means.values()) if len(others) > 1 else means[others[0]]
        if not abs(means[setting] - middle) <= _allowed([scaled[each] for each in others], scale):  # or it is no number
            yield setting, _warning(own, [values[each] for each in others], scale)


def _warning(own: Sequence[float], others: Sequence[Sequence[float]], scale: Scale) -> str:
    mine, theirs = scale.word(fmean(own)), scale.word(median(fmean(figures) for figures in others))
    which = "the other setting" if len(others) == 1 else f"the {len(others)} others"
    return (
        f"its {scale.name}, {mine}, is far from that of {which} that train the same ({theirs}): look at its losses "
        "before you use it"
    )


def _allowed(others: Sequence[Sequence[float]], scale: Scale) -> float:
    """How far a setting may be from the median. `others` are the values of the others, as they are compared."""
    repeated = [figures for figures in others if len(figures) > 1]
    freedom = sum(len(figures) - 1 for figures in repeated)
    if not freedom:
        return scale.alone
    pooled = math.sqrt(math.fsum((len(figures) - 1) * variance(figures) for figures in repeated) / freedom)
    return max(scale.floor, max(SPREADS, t_quantile((1 + CONFIDENCE) / 2, freedom)) * pooled)


def _end(repeat: RunResult, last_step: float = math.inf) -> float | None:
    """The mean of the last losses of a run, of those up to a step; None without any."""
    losses = repeat.summary.losses if repeat.summary else None
    values = (
        [value for step, value in zip(losses.steps, losses.values, strict=True) if step <= last_step] if losses else []
    )
    return fmean(values[-math.ceil(len(values) / LAST_PART) :]) if values else None


def not_learning(groups: Mapping[str, Sequence[RunResult]]) -> dict[str, str]:
    """Why a setting, by id, is no result though it has finished: its loss does not fall, as that of others does.

    `groups` has the repeats of settings that are done. A repeat is held against those of its number, which have its
    seed, over the steps that it has taken. All of a setting's repeats have to be so. Where no loss falls, as with
    random data, and in a few steps, nothing is found. Nobody knows the seeds of scripts.
    """
    tasks = [each for group in groups.values() for each in group if each.run.strategy.script is None]
    peers = grouped(tasks, lambda each: (comparable(flat(each.run)), each.run.repeat))
    reasons = {id(each): _does_not_fall(each, alike) for alike in peers.values() for each in alike}
    whys = {setting: [reasons.get(id(each)) for each in group] for setting, group in groups.items()}
    return {setting: str(its[0]) for setting, its in whys.items() if all(its)}


def _does_not_fall(repeat: RunResult, alike: Sequence[RunResult]) -> str:
    """`alike` have begun with the same weights."""
    losses = repeat.summary.losses if repeat.summary and not repeat.summary.adopted_from else None
    if not losses or not losses.steps or losses.steps[0] > 1 or losses.steps[-1] < LEAST_STEPS:
        return ""
    begin = fmean(losses.values[: max(1, len(losses.values) // FIRST_PART)])
    first, end = max(losses.values[0], begin), _end(repeat)
    assert end is not None
    least = min(other for each in alike if (other := _end(each, losses.steps[-1])) is not None)
    if end < first - FALLEN * abs(first) or least > end - FAR * abs(end):
        return ""
    return (
        f"its training loss does not fall ({number(begin)} at first, {number(end)} at the end, where that of another "
        f"setting is {number(least)} after as many steps)"
    )
