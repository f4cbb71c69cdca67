"""How certain the answer is, in words; where it is not certain, what would make it so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relay.comparison.answer import DISTURBED, Answer
from relay.comparison.candidates import Candidate, Compared
from relay.comparison.statistics import MOST_REPEATS
from relay.comparison.wording import MOST_NAMED, as_fast, between, listing, number, seconds, some, times

FAR_APART = 2  # times: so far apart, repeats of one setting were disturbed
OUT_OF_QUESTION = 4  # times as fast as it looks, a setting would have to be
MANY_HOURS = 24  # of further repeats, which few can spare
SAME = "even at the edges of the 95 % intervals the recommendation stays the same"


def certainty_of(answer: Answer, best: Candidate) -> str:
    """How certain the recommendation of `best` is. It is never called certain where others may have slowed it down."""
    told = [_unproven(best), _sentences(answer, best), _one_repeat(answer), _unknown(answer), _other_models(answer)]
    return " ".join(sentence for part in told for sentence in part)


def in_a_sentence(answer: Answer, best: Candidate) -> str:
    """The same in one sentence, for the first screen."""
    if answer.certainty == "alone":
        return _alone(answer, best)
    told = "it is certain for these measurements"
    if answer.certainty == "likely":
        more = len(answer.doubts) - 1
        others = f" (and {'one more reason' if more == 1 else f'{more} more reasons'})" if more else ""
        told = f"the measurements are clear, but it is not certain, because {answer.doubts[0]}{others}"
    elif answer.certainty == "tie":
        names = listing(some([each.other.name for each in answer.tied]))
        told = f"it is a tie with {names}, within {100 * answer.rules.margin:.3g} %"
    elif answer.certainty == "unclear":
        one = answer.runner_up if answer.runner_up in answer.unclear else answer.unclear[0]
        told = f"it is not certain: {one.other.name} looks {as_fast(one.ratio)}"
    told = f"measured, not proven: {told}" if best.row["unproven"] else told
    return f"{told[0].upper()}{told[1:]}."


def _unproven(best: Candidate) -> Iterator[str]:
    """That nobody can tell whether a recommended setting trains what one process would."""
    if reason := best.row["unproven"]:
        yield f"It is measured, not proven: because {reason}."


def _sentences(answer: Answer, best: Candidate) -> Iterator[str]:
    if answer.certainty == "winner":
        yield f"Certain for these measurements: {SAME}."
    elif answer.certainty == "likely":
        yield f"The measurements are clear: {SAME}."
        yield f"But it is not certain, because {_others(answer)}."
        if answer.neighbours:
            yield "To be certain, measure on a node of your own."
        if answer.places:
            yield "Measure both in one call, with repeats on the same nodes."
        if answer.short:
            yield "Train longer, with more `epochs`."
    elif answer.certainty == "tie":
        yield from _tie(answer, best)
        if answer.doubts:
            yield f"It is not certain, because {_others(answer)}."
    elif answer.certainty == "unclear":
        yield from _unclear(answer, best)
    else:
        yield _alone(answer, best)


def _one_repeat(answer: Answer) -> Iterator[str]:
    """The repeat that decides the answer, and how it is measured again."""
    if answer.odd:
        name, record, other = answer.odd
        yield (
            f"Without repeat {record.run.repeat + 1} of {name}, which is far from its others, {other} would be "
            f"recommended. Measure it again: `rm -r results/runs/{record.run.id}`, and give the same command again."
        )


def _unknown(answer: Answer) -> Iterator[str]:
    """Settings that were to be compared, and could not be: one of them might have been better."""
    lost = [each.name for each in answer.left_out if each.category in ("failed", "not timed")]
    if lost:
        how = "gave no result. It" if len(lost) == 1 else "gave no results. They"
        yield f"{listing(some(lost))} {how} might have been better."


def _other_models(answer: Answer) -> Iterator[str]:
    """That a setting which trains something else is no choice between speeds."""
    if answer.one_of_several:
        yield f"Other options, batches or precisions of {answer.task} are other trainings: speed does not compare them."


def _others(answer: Answer) -> str:
    return "; ".join(answer.doubts)


def _alone(answer: Answer, best: Candidate) -> str:
    proven = "" if best.run.strategy.script else " and proven"
    dropped = [each.name for each in answer.left_out if each.category == "dropped"]
    if not dropped:
        return f"Nothing else was measured{proven}, so there is nothing to compare it with."
    verb = "was" if len(dropped) == 1 else "were"
    slow = listing(some(dropped))
    return f"{slow} {verb} clearly slower in the first two repeats, and got no further ones (`drop_slower_than`)."


def _tie(answer: Answer, best: Candidate) -> Iterator[str]:
    """Which others are as fast, and whether to take them: one that costs more is no better."""
    verb = "trains" if len(answer.tied) == 1 else "train"
    names = listing(some([each.other.name for each in answer.tied]))
    yield f"It is a tie: {names} {verb} equally fast, within {100 * answer.rules.margin:.3g} %."
    alike = [each.other.name for each in answer.tied if each.other.cost == best.cost]
    if not alike:
        which = "It costs" if len(answer.tied) == 1 else "They cost"
        yield f"{which} more, and nothing is gained: take the recommended one."
    elif len(alike) == len(answer.tied):
        yield f"{'It costs' if len(alike) == 1 else 'They cost'} the same: take what your queue gives first."
    else:
        yield f"{listing(some(alike))} {'costs' if len(alike) == 1 else 'cost'} the same as the recommended one."
        yield "Of these, take what your queue gives first."


def _unclear(answer: Answer, best: Candidate) -> Iterator[str]:
    yield "Not certain."
    if any(each.ratio.low is None for each in answer.unclear):
        yield "With one repeat, nobody knows how much the speed varies."
    far = [each for each in answer.unclear if each.ratio.value * OUT_OF_QUESTION < answer.turns_at(each)]
    far = far if len(far) > 1 else []
    alike: dict[tuple[float, float], list[Compared]] = {}
    for each in (each for each in answer.unclear if not any(each is other for other in far)):
        alike.setdefault((each.other.cost, answer.turns_at(each)), []).append(each)
    groups = list(alike.values())
    for found in groups[:MOST_NAMED]:
        yield from _may_be_better(found, answer, best)
    if left := sum(map(len, groups[MOST_NAMED:])):
        yield f"Of {left} more the measurements do not tell either."
    if far:
        slowest, fastest = (number(each(found.ratio.value for found in far), 2) for each in (min, max))
        yield f"{len(far)} others look clearly too slow: {slowest} to {fastest} times as fast."
    among = [best, *(each.other for each in answer.unclear)]
    widest = max(among, key=_apart)
    far_apart = _apart(widest) >= FAR_APART
    if (count := answer.repeats) and not (answer.neighbours and far_apart):
        if far_apart:
            yield f"{_spread(widest)}."
        hours = sum(each.training_hours * (count - len(each.speeds)) for each in among)
        yield f"{count} repeats of each would tell: set `repeats: {count}`, and give the same command again."
        yield f"That takes about {seconds(3600 * hours)} more{'' if hours < MANY_HOURS else ': hardly worth it'}."
    else:
        yield from _repeats_will_hardly_help(answer, among, widest)
    if answer.doubts:
        yield f"Even then it is not certain, because {_others(answer)}."


def _may_be_better(found: Sequence[Compared], answer: Answer, best: Candidate) -> Iterator[str]:
    """Settings of which the intervals do not tell whether they are better, and where they would begin to be.

    They cost the same, and would begin to be better at the same speed.
    """
    first, *rest = found
    others = [f"{each.other.name} {times(each.ratio)}{between(each.ratio)}" for each in rest]
    yield listing(some([f"{first.other.name} looks {as_fast(first.ratio)}", *others])) + "."
    it, costs = ("it", "costs") if len(found) == 1 else ("they", "cost")
    ratio = found[0].other.cost / best.cost
    if ratio == 1:
        yield f"{it.capitalize()} {costs} the same."
    else:
        them, are = ("it", "it is") if len(found) == 1 else ("them", "they are")
        only, limit = "only if" if ratio > 1 else "if", f"at least {answer.turns_at(found[0]):.2f} times as fast"
        yield f"Because {it} {costs} {_as_much(ratio)}, I recommend {them} {only} {are} {limit}."


def _apart(candidate: Candidate) -> float:
    """How many times as fast as its slowest repeat a setting's fastest one was."""
    return max(candidate.speeds) / min(candidate.speeds)


def _spread(candidate: Candidate) -> str:
    return f"The fastest repeat of {candidate.name} was {number(_apart(candidate), 2)} times as fast as its slowest"


def _as_much(ratio: float) -> str:
    return {2: "twice as much", 0.5: "half as much"}.get(ratio, f"{number(ratio, 2)} times as much")


def _repeats_will_hardly_help(answer: Answer, among: Sequence[Candidate], widest: Candidate) -> Iterator[str]:
    """Why, and what to do instead."""
    if _apart(widest) >= DISTURBED:
        yield f"More repeats will hardly help. {_spread(widest)}."
    else:
        yield f"More repeats will hardly help: even {MOST_REPEATS} of each would not tell."
    if answer.goal:
        yield "Evaluations are far apart beside the difference: lower `evaluate_every_epochs`."
    yield f"Use a quieter node, or take {min(among, key=lambda each: each.cost).name}: it costs least an hour."
