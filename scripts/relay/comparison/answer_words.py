"""The answer in words: what is recommended, how certain it is, why it is not the fastest, and the further reasons.

A sentence has one thought. Where one figure stands in parentheses as "between a and b", that is its 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from relay.comparison import because
from relay.comparison.answer import Answer, LeftOut
from relay.comparison.candidates import Candidate, Compared, ends_first_from
from relay.comparison.certainty_words import certainty_of
from relay.comparison.quality import learns_more, quality
from relay.comparison.request import Request
from relay.comparison.statistics import band
from relay.comparison.wording import (
    LEAST_HOURS,
    as_fast,
    held,
    listing,
    minutes,
    number,
    percent,
    seconds,
    some,
)
from relay.spec.labels import counted
from relay.spec.script import TASK

ALIKE = 0.005  # of the time: less is told as no difference


def sentence(answer: Answer) -> str:
    """What is recommended, and what to ask for."""
    if answer.best is None or answer.request is None:
        return f"Nothing can be recommended for {answer.trained}: no setting was measured and proven."
    learnt = _quality(answer.best) if answer.one_of_several else ""
    what = "your script" if answer.trained == TASK else answer.trained
    return f"For {what}, {answer.best.name} is recommended.{learnt} Ask Slurm for {asked(answer.request)}."


def asked(request: Request) -> str:
    """What is asked for, such as '2 nodes with 4 GPUs and 12 CPUs each, for 30 minutes'."""
    cpus = counted(request.tasks_per_node * request.cpus_per_task, "CPU")
    devices = [counted(request.gpus_per_node, "GPU"), cpus] if request.gpus_per_node else [cpus, "no GPU"]
    memory = [f"{request.memory_mb:,} MiB of memory"] if request.memory_mb else []
    each = " each" if request.nodes > 1 else ""
    time = f"{'in' if request.jobs > 1 else 'for'} {jobs(request)}"
    return f"{counted(request.nodes, 'node')} with {listing([*devices, *memory])}{each}, {time}"


def jobs(request: Request) -> str:
    """The time that is asked for, such as '30 minutes' or, as a chain, '3 jobs of 60 minutes'."""
    return f"{request.jobs} jobs of {minutes(request.minutes)}" if request.jobs > 1 else minutes(request.minutes)


def certainty(answer: Answer) -> str:
    """How certain the answer is, and what would make it certain; where there is none, why."""
    return _nothing(answer.left_out) if answer.best is None else certainty_of(answer, answer.best)


def why_not_the_fastest(answer: Answer) -> str:
    """Why the fastest setting is not recommended; '' where it is, or where `certainty` says it."""
    best = answer.best
    found = next((each for each in answer.others if each.other is answer.fastest), None)
    if best is None or found is None or found.relation in ("tie", "unclear"):
        return ""
    if found is answer.larger:
        return _more_devices(answer, best, found)
    if found is answer.other_kind and found.other.on_gpus:
        return _a_gpu(answer, best, found)
    counts = f", where a GPU counts as {answer.rules.cores_per_gpu}" if found.other.on_gpus != best.on_gpus else ""
    return (
        f"{found.other.name} is the fastest: it trains {as_fast(found.ratio)}. But it takes "
        f"{more(found.other, best)}{counts}. It would have to be {number(answer.turns_at(found), 2)} times as "
        f"fast{_to_pay(found, best)}."
    )


def reasons(answer: Answer) -> list[str]:
    """The further reasons, a few sentences each."""
    return list(_reasons(answer, answer.best)) if answer.best else []


def _reasons(answer: Answer, best: Candidate) -> Iterator[str]:
    told = why_not_the_fastest(answer)
    yield _speed(answer, best)
    yield from _learns_less(answer, best)
    yield from _for_longer(answer, best)
    yield from (each for each in (_devices(answer, best), _kind(answer, best)) if each != told)
    if (cheapest := answer.cheapest) and cheapest is not best and not best.run.strategy.script:
        share = cheapest.cost / cheapest.rate / (best.cost / best.rate)
        if share < band(answer.rules.margin)[0]:
            longer = f"takes {number(best.rate / cheapest.rate, 2)} times as long"
            yield f"The cheapest is {cheapest.name}: it {longer}, and costs {percent(share, 0)} of that."
    if runner_up := answer.runner_up:
        why = because.difference(best, runner_up.other) if runner_up.relation not in ("tie", "unclear") else ""
        yield f"The next best is {runner_up.other.name}. {_another_choice(answer, runner_up)} {why}".rstrip()


def _speed(answer: Answer, best: Candidate) -> str:
    factor = best.run.task.units_per_sample
    low, high = best.speed.low, best.speed.high
    spread = f" (between {number(low * factor)} and {number(high * factor)})" if low and high else ""
    piece, whole = seconds(best.seconds_per_piece.value), seconds(3600 * best.training_hours)
    script = best.run.strategy.script
    all_of_it = (
        "the whole job" if script else f"the {best.run.length.epochs:g} epochs of this comparison, starts and all,"
    )
    return (
        f"It trains {number(best.speed.value * factor)} {answer.unit}/s{spread}. "
        f"{_capital(best.piece)} {'take' if best.piece[0].isdigit() else 'takes'} {piece}, {all_of_it} {whole}."
        f"{_quality(best)}"
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _quality(best: Candidate) -> str:
    found = quality([best.row])
    return "" if best.row[found.column] is None else f" Its test {found.name} is {found.told(best.row)}."


def _learns_less(answer: Answer, best: Candidate) -> Iterator[str]:
    """What speed does not show: that another setting learns more in the same epochs, at a smaller batch perhaps."""
    most = learns_more(best, answer.candidates)
    if most is None:
        return
    by_accuracy = most.row["test_accuracy"] is not None
    reached = (
        f"accuracy of {percent(most.row['test_accuracy'])}"
        if by_accuracy
        else f"loss of {number(most.row['test_loss'])}"
    )
    yield (
        f"It learns less in these epochs: {most.name} reaches a test {reached}. Before you take it, train longer, or "
        "change the batch or the learning rate."
    )


def _for_longer(answer: Answer, best: Candidate) -> Iterator[str]:
    """For which longer trainings another setting would end first: the one for which that is so soonest."""
    others = [each.other for each in answer.others]
    turns = [(epochs, each) for each in others if (epochs := ends_first_from(each, best, answer.rules.margin))]
    longer = [(epochs, each.name, each) for epochs, each in turns if epochs > best.run.length.epochs]
    if longer:
        epochs, name, other = min(longer)
        once, its = (seconds(each.start_and_epoch[0]) for each in (best, other))
        yield (
            f"For more than {number(epochs, 2)} epochs, {name} would end first: an epoch takes it less time. But its "
            f"start takes {its}, beside {once}."
        )


def _devices(answer: Answer, best: Candidate) -> str:
    """What is known of more devices of the same kind."""
    if answer.larger:
        return _more_devices(answer, best, answer.larger)
    fewer = any(each.other.size < best.size and each.other.on_gpus == best.on_gpus for each in answer.others)
    which = "More" if fewer or best.size == 1 else "Neither fewer nor more"
    verb = "was not" if best.size == 1 else "were not" if fewer else "were"
    return f"{which} than {_size(best)} {verb} measured."


def _more_devices(answer: Answer, best: Candidate, found: Compared) -> str:
    """What more devices gave of the speed that they could have, and what is wanted."""
    against, factor = found.against, found.other.cost / found.against.cost
    share = percent(found.other.rate / against.rate / factor, 0)
    ideal = "double" if factor == 2 else f"{factor:.3g}-fold"
    beside = "" if against is best else f" of {against.name}"
    limit = f"Your limit is {percent(answer.rules.least_efficiency, 0)} (`least_efficiency`)"
    unsure = found.relation == "unclear"
    pay = "may not pay" if unsure else f"{'does' if best.size == 1 else 'do'} not pay"
    so = f", so {_size(best)} {'is' if best.size == 1 else 'are'} recommended"
    end = ". The measurements do not tell on which side of it they are" if unsure else so
    told = (
        f"More than {_size(best)} {pay}. {found.other.name} trains {as_fast(found.ratio)}. "
        f"So {_size(found.other)} gave {share} of the ideal {ideal} speed{beside}. {limit}{end}."
    )
    return f"{told} {because.overhead(found.other)}".rstrip()


def _size(candidate: Candidate) -> str:
    return counted(candidate.size, "GPU" if candidate.on_gpus else "CPU core")


def _kind(answer: Answer, best: Candidate) -> str:
    """Whether a GPU is worth it, with the evidence, as far as it was measured."""
    found = answer.other_kind
    if best.on_gpus and found is None:
        return "Whether CPUs would do is not known: no setting on CPUs was measured."
    if best.on_gpus and found is not None:
        if told := why_not_the_fastest(answer) if found.other is answer.fastest else "":
            return told
        lead = "A GPU may pay" if found.relation == "unclear" else "A GPU pays"
        return (
            f"{lead}. The best setting on CPUs, {found.other.name}, is {as_fast(found.ratio)}. "
            f"It takes {seconds(found.other.seconds_per_piece.value)} for {found.other.piece}."
        )
    if found is not None:
        return _a_gpu(answer, best, found)
    run = "runs" if len(answer.only_on_cpu) == 1 else "run"
    made = f" {listing(answer.only_on_cpu)} also {run} on GPUs." if answer.only_on_cpu else ""
    return f"Not measured on GPUs: this says nothing about them.{made}"


def _a_gpu(answer: Answer, best: Candidate, found: Compared) -> str:
    """Why CPUs are recommended beside the best setting on GPUs."""
    lead = "A GPU may not pay" if found.relation == "unclear" else "Do not ask for a GPU"
    used = found.other.row["gpu_utilisation"]
    told = (
        f"{lead}. The best setting on GPUs, {found.other.name}, trains {as_fast(found.ratio)}, "
        f"{found.other.piece} in {seconds(found.other.seconds_per_piece.value)}. "
        f"A GPU counts as {answer.rules.cores_per_gpu} CPU cores, so it costs "
        f"{number(found.other.cost / best.cost, 2)} times as much. It would have to be "
        f"{number(answer.turns_at(found), 2)} times as fast."
    )
    return told if used is None else f"{told} Its GPUs computed {percent(used, 0)} of the time."


def _to_pay(found: Compared, best: Candidate) -> str:
    """Against which other setting a costlier one has to pay, where it is not the recommended one; else ''."""
    return "" if found.against is best else f" to pay against {found.against.name}"


def not_recommended(answer: Answer, found: Compared) -> str:
    """Why another setting is not recommended, in a few words."""
    assert answer.best is not None
    ratio = found.other.cost / answer.best.cost
    if found.relation == "tie":
        return "as fast, at the same cost" if ratio == 1 else "as fast, but it costs more"
    if found.relation == "unclear":
        from_there = f"not certain: recommended from {answer.turns_at(found):.2f} times the speed on"
        return "not certain: perhaps as fast" if ratio == 1 else from_there
    if found.relation == "does not pay":
        return f"faster, but dearer: it pays from {answer.turns_at(found):.2f} times the speed on"
    if found.relation == "cheaper, too slow":
        return f"cheaper, but too slow: it would do from {answer.turns_at(found):.2f} times the speed on"
    return f"slower{'' if not (why := because.slower(answer.best, found.other)) else f': {why}'}"


def _another_choice(answer: Answer, found: Compared) -> str:
    """What a training with another setting takes."""
    wrong = next(each for each in answer.wrong if each.name == found.other.name)
    apart = wrong.times_as_long - 1
    longer, factor = apart > -ALIKE, number(wrong.times_as_long)
    time = f"only {factor} of the time" if not longer else f"{factor} times as long" if apart > ALIKE else "as long"
    more_held = [(wrong.more_gpu_hours, "GPU"), (wrong.more_core_hours, "CPU-core")]
    told = [held(hours, thing) for hours, thing in more_held if abs(hours) >= LEAST_HOURS]
    dearer = max(hours for hours, _ in more_held) > LEAST_HOURS
    held_too = f", {'and' if longer == dearer else 'but'} {listing(told)}" if told else ""
    return f"A training with it takes {time}{held_too}."


def more(other: Candidate, best: Candidate) -> str:
    """How much more another candidate takes, such as '2 times the GPUs' or '6 times the CPU cores'."""
    by_gpus = math.isclose(other.cost / best.cost, other.size / best.size)  # else cores beside them cost more
    kind = "GPUs" if other.on_gpus and best.on_gpus and by_gpus else "CPU cores"
    return f"{number(other.cost / best.cost, 2)} times the {kind}"


def _nothing(left_out: Sequence[LeftOut]) -> str:
    if not left_out:
        return "The plan holds no run."
    return f"{'; '.join(some([f'{each.name}: {each.category}: {each.reason}' for each in left_out]))}."


def not_measured(answer: Answer) -> list[str]:
    """What the answer does not rest on, because it was not measured."""
    lines = []
    if answer.best and not any(each.on_gpus for each in answer.candidates):
        lines.append("GPUs: no setting on GPUs was measured")
    if answer.only_on_cpu:
        lines.append(f"{listing(answer.only_on_cpu)}: only shown on CPUs, not timed on GPUs")
    lines += [f"{each.name}: {each.category}: {each.reason}" for each in answer.left_out if each.category == "skipped"]
    return lines
