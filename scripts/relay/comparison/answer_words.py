"""The answer in words: one sentence first, then the reasons, each with its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from relay.comparison import because
from relay.comparison.answer import Answer, LeftOut, WrongChoice
from relay.comparison.candidates import Candidate, Compared
from relay.comparison.request import Request
from relay.comparison.statistics import MOST_REPEATS, Estimate
from relay.comparison.wording import listing, number, percent
from relay.spec.labels import counted

MOST_NAMED = 3
FAR_APART = 2  # times: so far apart, repeats were disturbed
LEARNS_LESS = 0.02  # of the test samples: less may be chance
LOSS_LESS = 0.1  # of the test loss, where a task has no classes
LEAST_HOURS = 1e-9  # less is rounding


def sentence(answer: Answer) -> str:
    """What to ask for, in one sentence."""
    if answer.best is None or answer.request is None:
        return f"Nothing can be recommended for {answer.task}: no setting was measured and shown equivalent."
    return f"For {answer.task} ask for {asked(answer.request)}: {answer.best.name}."


def asked(request: Request) -> str:
    """What is asked for, such as '2 nodes with 4 GPUs and 12 CPUs each' or '1 node with 2 CPUs and no GPU'."""
    cpus = counted(request.tasks_per_node * request.cpus_per_task, "CPU")
    devices = f"{counted(request.gpus_per_node, 'GPU')} and {cpus}" if request.gpus_per_node else f"{cpus} and no GPU"
    each = " each" if request.nodes > 1 else ""
    memory = f", {request.memory_mb:,} MiB of memory{each}" if request.memory_mb else ""
    return f"{counted(request.nodes, 'node')} with {devices}{each}{memory}, and {jobs(request)}"


def jobs(request: Request) -> str:
    """The time that is asked for, such as '30 minutes' or, as a chain, '3 jobs of 60 minutes'."""
    return f"{request.jobs} jobs of {minutes(request.minutes)}" if request.jobs > 1 else minutes(request.minutes)


def reasons(answer: Answer) -> list[str]:
    """Why, one sentence or two for each reason."""
    return list(_reasons(answer))


def certainty(answer: Answer) -> str:
    """How sure the answer is, in a sentence."""
    best = answer.best
    if best is None:
        return _nothing(answer.left_out)
    dropped = [each.name for each in answer.left_out if each.category == "dropped"]
    if answer.certainty == "alone" and dropped:
        verb = "was" if len(dropped) == 1 else "were"
        slow = listing(some(dropped))
        return f"{slow} {verb} clearly slower in the first repeat, and got no further ones (drop_slower_than)."
    if answer.certainty == "alone":
        return "Nothing else was measured and shown equivalent to compare it with."
    if answer.certainty == "unclear":
        return _unclear(answer)
    if answer.certainty == "tie":
        return _tie(answer, best)
    return "It is sure: no 95 % interval of a speed's ratio reaches to where the answer would be another."


def _tie(answer: Answer, best: Candidate) -> str:
    """Which others are as fast, and whether to take them: one that holds more is no better."""
    verb = "trains" if len(answer.tied) == 1 else "train"
    told = (
        f"It is a tie: {listing(some([each.other.name for each in answer.tied]))} {verb} equally fast, within "
        f"{100 * answer.rules.margin:.3g} %."
    )
    alike = [each.other.name for each in answer.tied if each.other.cost == best.cost]
    if len(alike) == len(answer.tied):
        return f"{told} Take what your queue gives first."
    if not alike:
        which = "It holds" if len(answer.tied) == 1 else "They hold"
        return f"{told} {which} more, and nothing is gained: take the recommended one."
    return f"{told} At the same cost: {listing(some(alike))}. Of these, take what your queue gives first."


def some(names: Sequence[str]) -> list[str]:
    """The first few names, and how many more there are."""
    left = len(names) - MOST_NAMED
    return [*names[:MOST_NAMED], f"{left} more"] if left > 1 else list(names)


def _reasons(answer: Answer) -> Iterator[str]:
    best = answer.best
    if best is None:
        return
    yield _speed(answer, best)
    yield from _learns_less(answer, best)
    yield from _fastest(answer, best)
    yield from _more_devices(answer, best)
    yield from _other_kind(answer, best)
    if runner_up := answer.runner_up:
        wrong = next(each for each in answer.wrong if each.name == runner_up.other.name)
        told = f"The runner-up is {runner_up.other.name}: {times(runner_up.ratio)} as fast. {wrong_choice(wrong)}"
        why = because.difference(best, runner_up.other) if runner_up.relation not in ("tie", "unclear") else ""
        yield f"{told} {why}".rstrip()


def _speed(answer: Answer, best: Candidate) -> str:
    factor = best.row[f"{answer.unit}_per_second"] / best.speed.value
    low, high = best.speed.low, best.speed.high
    between = f" (95 % interval {number(low * factor)} to {number(high * factor)})" if low and high else ""
    quality = _quality(best)
    epoch, whole = seconds(best.seconds_per_epoch.value), seconds(3600 * best.training_hours)
    return (
        f"It trains {number(best.speed.value * factor)} {answer.unit}/s{between}: {epoch} for an epoch, {whole} for "
        f"the {best.run.length.epochs:g} epochs of this comparison{quality}."
    )


def _quality(best: Candidate) -> str:
    if best.row["test_accuracy"] is not None:
        return f", to a test accuracy of {percent(best.row['test_accuracy'])}"
    return f", to a test loss of {number(best.row['test_loss'])}" if best.row["test_loss"] is not None else ""


def _learns_less(answer: Answer, best: Candidate) -> Iterator[str]:
    """What speed does not show: that another setting learns more in the same epochs, at a smaller batch perhaps."""
    known = [each for each in answer.candidates if each.row["test_accuracy"] is not None]
    reached = ""
    if best in known:
        most = max(known, key=lambda each: float(each.row["test_accuracy"]))
        if most.row["test_accuracy"] - best.row["test_accuracy"] > LEARNS_LESS:
            reached = f"{most.name} reaches a test accuracy of {percent(most.row['test_accuracy'])}"
    elif not known and best.row["test_loss"] is not None:  # a task without classes
        by_loss = [each for each in answer.candidates if each.row["test_loss"] is not None]
        most = min(by_loss, key=lambda each: float(each.row["test_loss"]))
        if most.row["test_loss"] < (1 - LOSS_LESS) * best.row["test_loss"]:
            reached = f"{most.name} reaches a test loss of {number(most.row['test_loss'])}"
    if reached:
        yield (
            f"It learns less in these epochs: {reached}. Before you take it, train longer, or change the batch or the "
            "learning rate."
        )


def _fastest(answer: Answer, best: Candidate) -> Iterator[str]:
    """Why the fastest is not recommended, where it is another."""
    found = next((each for each in answer.others if each.other is answer.fastest), None)
    if found is None or found.relation in ("tie", "unclear") or found is answer.larger or found is answer.other_kind:
        return
    yield (
        f"{found.other.name} is fastest, {times(found.ratio)} as fast, but it takes {more(found.other, best)}: "
        f"it would have to be {number(answer.must_be_faster(found), 2)} times as fast{_to_pay(found, best)}."
    )


def _to_pay(found: Compared, best: Candidate) -> str:
    """Against which other setting a costlier one has to pay, where it is not the recommended one; else ''."""
    return "" if found.against is best else f" to pay against {found.against.name}"


def _more_devices(answer: Answer, best: Candidate) -> Iterator[str]:
    """What is known of more devices of the same kind."""
    thing = "GPU" if best.on_gpus else "CPU core"
    if (found := answer.larger) is None:
        fewer = any(each.other.size < best.size and each.other.on_gpus == best.on_gpus for each in answer.others)
        which = "More" if fewer or best.size == 1 else "Neither fewer nor more"
        verb = "was not" if best.size == 1 else "were not" if fewer else "were"
        yield f"{which} than {counted(best.size, thing)} {verb} measured."
        return
    against = found.against
    share = percent(found.other.speed.value / against.speed.value * against.cost / found.other.cost, 0)
    unsure = found.relation == "unclear"
    verb = "may not pay" if unsure else f"{'does' if best.size == 1 else 'do'} not pay"
    lead = "That is" if against is best else f"Beside {against.name}, that is"
    told = (
        f"More than {counted(best.size, thing)} {verb}: {counted(found.other.size, thing)} ({found.other.name}) train "
        f"{times(found.ratio)} as fast. {lead} {share} of the speed that so many could have; at least "
        f"{percent(answer.rules.least_efficiency, 0)} is wanted (least_efficiency)."
    )
    yield f"{told} {because.overhead(found.other)}".rstrip()


def _other_kind(answer: Answer, best: Candidate) -> Iterator[str]:
    """Whether a GPU is worth it, with the evidence, as far as it was measured."""
    found = answer.other_kind
    if best.on_gpus and found is None:
        yield "Whether CPUs would do is not known: no setting on CPUs was measured."
    elif best.on_gpus and found is not None:
        lead = "A GPU may pay" if found.relation == "unclear" else "A GPU pays"
        yield (
            f"{lead}: the best setting on CPUs, {found.other.name}, is {times(found.ratio)} as fast, "
            f"{seconds(found.other.seconds_per_epoch.value)} for an epoch."
        )
    elif found is not None:
        more_cores = number(found.other.cost / best.cost, 2)
        lead = "A GPU may not pay" if found.relation == "unclear" else "Do not ask for a GPU"
        cheaper = found.other.cost < best.cost
        needed = 1 / answer.has_to_gain(found.other) if cheaper else answer.must_be_faster(found)
        used = found.other.row["gpu_utilisation"]
        told = (
            f"{lead}: the best setting on GPUs, {found.other.name}, is {times(found.ratio)} as fast "
            f"({seconds(found.other.seconds_per_epoch.value)} for an epoch), and holds {more_cores} times as much: a "
            f"GPU counts as {answer.rules.cores_per_gpu} CPU cores. It would have to be at least "
            f"{number(needed, 2)} times as fast."
        )
        yield told if used is None else f"{told} Its GPUs computed {percent(used, 0)} of the time."
    else:
        run = "runs" if len(answer.only_on_cpu) == 1 else "run"
        made = f" {listing(answer.only_on_cpu)} also {run} on GPUs." if answer.only_on_cpu else ""
        yield f"Not measured on GPUs: this says nothing about them.{made}"


def _unclear(answer: Answer) -> str:
    shown = "; ".join(some([_may_be_better(each, answer) for each in answer.unclear]))
    lone = any(each.ratio.low is None for each in answer.unclear)
    why = "with one repeat there is no spread to judge by" if lone else "another may be better"
    if answer.repeats is None:
        assert answer.best is not None
        alike = all(each.other.cost == answer.best.cost for each in answer.unclear)
        cheapest = min((answer.best, *(each.other for each in answer.unclear)), key=lambda each: each.cost).name
        choice = "take any, for they cost the same" if alike else f"choose: of these, {cheapest} holds least"
        told = f"Even {MOST_REPEATS} repeats would not tell: measure on quieter nodes, or {choice}."
        return f"It is not sure, because {why}: {shown}. {told}"
    remedy = f"{answer.repeats} of each (repeats: {answer.repeats})"
    return f"It is not sure, because {why}: {shown}. More repeats would tell: {remedy}."


def _may_be_better(found: Compared, answer: Answer) -> str:
    """A setting of which the intervals do not tell whether it is better, and where it would begin to be."""
    told = f"{found.other.name} trains {times(found.ratio)} as fast{_unsteady(found.other)}"
    assert answer.best is not None
    if found.other.cost > answer.best.cost:
        return f"{told} and pays from {answer.must_be_faster(found):.2f} times on"
    if found.other.cost < answer.best.cost:
        return f"{told} and would be the answer from {1 / answer.has_to_gain(found.other):.2f} times on: it holds less"
    return told


def _unsteady(candidate: Candidate) -> str:
    """How far a setting's repeats are apart, where that is the reason for a wide interval; else ''."""
    slowest, fastest = min(candidate.speeds), max(candidate.speeds)
    apart = fastest / slowest if slowest > 0 else 0.0
    return f", its fastest repeat {number(apart, 2)} times as fast as its slowest," if apart >= FAR_APART else ""


def _nothing(left_out: Sequence[LeftOut]) -> str:
    if not left_out:
        return "The plan holds no run."
    return f"{'; '.join(some([f'{each.name}: {each.category}: {each.reason}' for each in left_out]))}."


def wrong_choice(wrong: WrongChoice) -> str:
    """What another choice costs."""
    more_held = [(wrong.more_gpu_hours, "GPU"), (wrong.more_core_hours, "CPU-core")]
    told = [held(hours, thing) for hours, thing in more_held if abs(hours) >= LEAST_HOURS]
    costs = f" and holds {listing(told)}" if told else ""
    return f"A training with it takes {number(wrong.times_as_long)} times as long{costs}."


def held(hours: float, thing: str) -> str:
    """How much more of a device's time is held, such as '3.2 GPU-hours more' or '12 CPU-core-seconds less'."""
    if abs(hours) < LEAST_HOURS:
        return "the same"
    sizes = ((1.0, "hours"), (1 / 60, "minutes"), (1 / 3600, "seconds"))
    size, unit = next((each for each in sizes if abs(hours) >= each[0]), sizes[-1])
    return f"{number(abs(hours) / size, 2)} {thing}-{unit} {'more' if hours > 0 else 'less'}"


def more(other: Candidate, best: Candidate) -> str:
    """How much more another candidate takes, such as '2 times the GPUs' or '6 times the cores'."""
    by_gpus = math.isclose(other.cost / best.cost, other.size / best.size)  # else cores beside them cost more
    kind = "GPUs" if other.on_gpus and best.on_gpus and by_gpus else "CPU cores"
    return f"{number(other.cost / best.cost, 2)} times the {kind}"


def times(ratio: Estimate) -> str:
    """A ratio with its interval, such as '0.86 times (95 % interval 0.84 to 0.88)'."""
    if ratio.low is None or ratio.high is None:
        return f"{_factor(ratio.value)} times"
    return f"{_factor(ratio.value)} times (95 % interval {_factor(ratio.low)} to {_factor(ratio.high)})"


def _factor(value: float) -> str:
    """A ratio with two decimals; a small one with two digits that say something."""
    return f"{value:.2f}" if value >= 0.1 else number(value, 2)


def seconds(value: float) -> str:
    """A duration in the unit that suits it, such as '4.2 s', '12 min' or '3.5 h'."""
    if value < 120:
        return f"{number(value, 2)} s"
    return f"{number(value / 60, 2)} min" if value < 7200 else f"{number(value / 3600, 2)} h"


def minutes(value: int) -> str:
    """Minutes in words."""
    return f"{counted(value, 'minute')}" if value < 180 else f"{number(value / 60, 2)} hours"


def not_measured(answer: Answer) -> list[str]:
    """What the answer does not rest on, because it was not measured."""
    lines = []
    if answer.best and not any(each.on_gpus for each in answer.candidates):
        lines.append("GPUs: no setting on GPUs was measured")
    if answer.only_on_cpu:
        lines.append(f"{listing(answer.only_on_cpu)}: only shown on CPUs, not timed on GPUs")
    lines += [f"{each.name}: {each.category}: {each.reason}" for each in answer.left_out if each.category == "skipped"]
    return lines
