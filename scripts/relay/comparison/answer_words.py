"""The answer in words: what is recommended, how certain it is, why it is not the fastest, and the further reasons.

A sentence has one thought. Where one figure stands in parentheses as "between a and b", that is its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relay.comparison import because
from relay.comparison.answer import Answer
from relay.comparison.candidates import Candidate, Compared, ends_first_from, gpus
from relay.comparison.certainty_words import certainty_of, in_a_sentence
from relay.comparison.left_out import LeftOut
from relay.comparison.quality import quality
from relay.comparison.request import Request
from relay.comparison.statistics import against_itself, band, ratio_of_days, standing
from relay.comparison.wording import as_fast, between, listing, minutes, number, percent, seconds, some
from relay.spec.labels import counted
from relay.spec.script import TASK


def sentence(answer: Answer) -> str:
    """What is recommended, and what to ask for."""
    if answer.best is None or answer.request is None:
        why = "no setting keeps to the limits" if _beyond(answer.left_out) else "no setting was measured and proven"
        return f"Nothing can be recommended for {answer.trained}: {why}."
    learnt = _quality(answer.best) if answer.one_of_several else ""
    what = answer.trained.replace(TASK, "your script", 1) if answer.task == TASK else answer.trained
    return (
        f"For {_work(answer)}{what}, {answer.best.name} is recommended{_because(answer)}.{learnt} "
        f"Ask Slurm for {asked(answer.request)}."
    )


def _work(answer: Answer) -> str:
    return f"{answer.rules.epochs:,g} epochs of " if answer.rules.epochs else ""


def _because(answer: Answer) -> str:
    """By what, where it is not the whole training's time and cost alone."""
    rules = answer.rules
    told = [f"the first at {answer.goal}"] if answer.goal else []
    told += [f"the cheapest within {rules.deadline_hours:g} hours"] if rules.deadline_hours else []
    fastest = "" if rules.deadline_hours else "the fastest "
    told += [f"{fastest}within {rules.budget:g} {rules.currency}"] if rules.budget else []
    return f" as {', and '.join(told)}" if told else ""


def _beyond(left_out: Sequence[LeftOut]) -> bool:
    return any(each.category == "beyond a limit" for each in left_out)


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


def in_short(answer: Answer) -> str:
    """The same in one sentence."""
    return _nothing(answer.left_out) if answer.best is None else in_a_sentence(answer, answer.best)


def why_not_the_fastest(answer: Answer) -> str:
    """Why the fastest setting is not recommended; '' where it is, or where `certainty` says it."""
    best = answer.best
    found = next((each for each in answer.others if each.other is answer.fastest), None)
    if best is None or found is None or found.relation in ("tie", "unclear"):
        return ""
    if found is answer.larger:
        return _more_devices(answer, best, found)
    if found is answer.other_kind:
        return _kind(answer, best)
    return (
        f"{found.other.name} is the fastest: it trains {as_fast(found.ratio)}. But it costs "
        f"{number(found.other.cost / best.cost, 2)} times as much an hour. "
        f"It would have to be {number(answer.turns_at(found), 2)} times as "
        f"fast{_to_pay(found, best)}."
    )


def reasons(answer: Answer) -> list[str]:
    """The further reasons, a few sentences each."""
    return list(_reasons(answer, answer.best)) if answer.best else []


def _reasons(answer: Answer, best: Candidate) -> Iterator[str]:
    told = why_not_the_fastest(answer)
    yield _speed(answer, best)
    yield from _learns_less(answer)
    yield from _for_longer(answer, best)
    yield from _beside_itself(answer, best)
    yield from (each for each in (_devices(answer, best), _kind(answer, best)) if each != told)
    if (cheapest := answer.cheapest) and cheapest is not best and not best.run.strategy.script:
        share = cheapest.spent / best.spent
        if share < band(answer.rules.margin)[0]:
            longer = f"takes {number(best.rate / cheapest.rate, 2)} times as long"
            yield f"The cheapest is {cheapest.name}: it {longer}, and costs {percent(share, 0)} of that."
    if runner_up := answer.runner_up:
        why = because.difference(best, runner_up.other) if runner_up.relation not in ("tie", "unclear") else ""
        yield f"The next best is {runner_up.other.name}: {_time_and_cost(answer, runner_up.other)}. {why}".rstrip()


def _speed(answer: Answer, best: Candidate) -> str:
    factor = best.run.task.units_per_sample
    low, high = best.speed.low, best.speed.high
    spread = f" (between {number(low * factor)} and {number(high * factor)})" if low and high else ""
    piece, whole = seconds(best.seconds_per_piece.value), seconds(3600 * best.training_hours)
    script = best.run.strategy.script
    all_of_it = (
        "the whole job"
        if script
        else f"the way to {best.goal}, starts and all,"
        if best.goal
        else f"the {best.epochs:,g} epoch{'' if best.epochs == 1 else 's'}, starts and all,"
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


def _learns_less(answer: Answer) -> Iterator[str]:
    """What speed does not show: that another setting learns more in the same epochs, at a smaller batch perhaps."""
    if most := answer.learnt:
        found = (
            ("accuracy", percent(most.row["test_accuracy"]))
            if most.row["test_accuracy"] is not None
            else ("loss", number(most.row["test_loss"]))
        )
        yield (
            f"It learns less in these epochs: {most.name} reaches a test {found[0]} of {found[1]}. Before you take it, "
            "train longer, or change the batch or the learning rate."
        )


def _beside_itself(answer: Answer, best: Candidate) -> Iterator[str]:
    """A/A: what would be said of the recommended setting beside itself, and what days made of it."""
    if found := against_itself(list(best.rates.values())):
        tie = standing(found, answer.rules.margin) == "tie"
        said = "a tie, as it has to be" if tie else "unclear, since a tie takes more repeats"
        yield f"Beside itself, so measured, it would be {said}{between(found)}."
    days: dict[str, list[float]] = {}
    for each in best.records:
        if each.run.repeat in best.rates and each.summary:
            days.setdefault(each.summary["started_at"][:10], []).append(best.rates[each.run.repeat])
    if len(days) > 1:
        (first, before), (last, after) = min(days.items()), max(days.items())
        yield f"On {last} it was {as_fast(ratio_of_days(after, before))} as on {first}."


def _for_longer(answer: Answer, best: Candidate) -> Iterator[str]:
    """For which longer and shorter trainings another setting would end first: those nearest to the one asked for."""
    found = []
    for other in (each.other for each in answer.others):
        for slow_to_start, quick in ((other, best), (best, other)):
            epochs = ends_first_from(slow_to_start, quick, answer.rules.margin)
            if epochs and epochs > 1 and (epochs > best.epochs) is (quick is best):
                found.append((abs(epochs - best.epochs), epochs, other))
    for more in (True, False):
        if nearest := min(
            (each for each in found if (each[1] > best.epochs) is more), default=None, key=lambda x: x[0]
        ):
            once, its = (seconds(each.start_and_epoch[0]) for each in (best, nearest[2]))
            yield (
                f"For {'more' if more else 'fewer'} than {number(nearest[1], 2)} epochs, {nearest[2].name} would end "
                f"first: its start takes {its}, beside {once}, and an epoch {'less' if more else 'more'} time."
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
    """Whether a GPU is worth it: time and cost of both kinds of device, and the price at which the choice turns."""
    if found := answer.other_kind:
        kind = "GPUs" if found.other.on_gpus else "CPUs"
        used = found.other.row["gpu_utilisation"]
        told = f"The best setting on {kind}, {found.other.name}, is {as_fast(found.ratio)}: "
        told += f"{_time_and_cost(answer, found.other)}, beside {_time_and_cost(answer, best)}. "
        told += _turns(answer, *sorted((best, found.other), key=lambda each: not each.on_gpus))
        return told if used is None else f"{told} Its GPUs computed {percent(used, 0)} of the time."
    if best.on_gpus:
        return "Whether CPUs would do is not known: no setting on CPUs was measured."
    run = "runs" if len(answer.only_on_cpu) == 1 else "run"
    made = f" {listing(answer.only_on_cpu)} also {run} on GPUs." if answer.only_on_cpu else ""
    return f"Not measured on GPUs: this says nothing about them.{made}"


def _time_and_cost(answer: Answer, each: Candidate) -> str:
    return f"{seconds(3600 * each.training_hours)} and {number(each.spent, 2)} {answer.rules.currency}"


def _turns(answer: Answer, gpu: Candidate, cpu: Candidate) -> str:
    """From which price of a GPU on the choice between the two turns, for who asks for efficiency at all."""
    ratio, rules = gpu.rate / cpu.rate, answer.rules
    if not rules.efficiency:
        return ""
    price = ratio * rules.efficiency ** (1 if ratio < 1 else -1) * cpu.cost / gpus(gpu.run)
    return (
        f"A GPU is worth it where an hour of it costs less than {number(price, 2)} hours of a CPU core; here it counts "
        f"as {number(rules.cores_per_gpu, 2)}."
    )


def _to_pay(found: Compared, best: Candidate) -> str:
    """Against which other setting a costlier one has to pay, where it is not the recommended one; else ''."""
    return "" if found.against is best else f" to pay against {found.against.name}"


def not_recommended(answer: Answer, found: Compared) -> str:
    """Why another setting is not recommended, in a few words."""
    assert answer.best is not None
    at = f"{answer.turns_at(found):.2f} times the speed on"
    why = because.slower(answer.best, found.other)
    return {
        "tie": "as fast" if found.other.cost == answer.best.cost else "as fast, but it costs more",
        "unclear": f"not certain: recommended from {at}",
        "does not pay": f"faster, but dearer: it pays from {at}",
        "cheaper, too slow": f"cheaper, but too slow: it would do from {at}",
        "slower": f"slower: {why}" if why else "slower",
    }[found.relation]


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
