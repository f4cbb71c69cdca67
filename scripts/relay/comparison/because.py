"""The figures behind the answer's reasons: parts of a step, doubts, other lengths, a setting beside itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from relay.comparison.answer import Answer
from relay.comparison.candidates import Candidate, ends_first_from
from relay.comparison.choice import Compared
from relay.comparison.statistics import Estimate, against_itself, ratio_of_days, standing
from relay.run_folder.step_split import COLUMNS

MOST = 0.5  # of the difference: a part that takes less of it is not the reason
WORTH_TELLING = 0.1  # of a step's time
FAR_APART = 2  # times: so far apart, repeats of one setting were disturbed
OUT_OF_QUESTION = 4  # times as fast as it looks, a setting would have to be


@dataclass(frozen=True)
class SlowerPart:
    """The part of a step that makes a setting slower: its shares of the slow and the quick setting's steps.

    `whole_seconds`: how much longer the slow one's piece of work takes, all parts together.
    """

    name: str
    share: float
    share_of_other: float
    whole_seconds: float


def slower_by(quick: Candidate, slow: Candidate) -> SlowerPart | None:
    """The part that is most of what the slow setting takes longer; None without one, and where none was observed."""
    shares = [{part: each.row[name] for part, name in COLUMNS.items()} for each in (slow, quick)]
    if any(each["compute"] is None for each in shares):
        return None
    its, others = ({part: share or 0.0 for part, share in each.items()} for each in shares)
    longer = {
        part: slow.seconds_per_piece.value * its[part] - quick.seconds_per_piece.value * others[part] for part in its
    }
    whole = sum(longer.values())
    part = max(longer, key=lambda each: longer[each])
    return SlowerPart(part, its[part], others[part], whole) if whole > 0 and longer[part] >= MOST * whole else None


def beside_computing(candidate: Candidate) -> Iterator[tuple[str, float]]:
    """What a setting's steps do most besides computing, and its share; nothing where that is little, or not known."""
    shares = {part: candidate.row[name] or 0.0 for part, name in COLUMNS.items() if part != "compute"}
    part = max(shares, key=lambda each: shares[each])
    if shares[part] >= WORTH_TELLING:
        yield part, shares[part]


def ends_first(answer: Answer) -> Iterator[tuple[Candidate, bool, float]]:
    """Which other setting ends first for more epochs, and which for fewer, and from how many on.

    Of several, that whose number of epochs is nearest to the one asked for. True stands for more.
    """
    best, found = answer.best, []
    assert best is not None
    for other in (each.other for each in answer.others):
        for slow_to_start, quick in ((other, best), (best, other)):
            epochs = ends_first_from(slow_to_start, quick, answer.rules.margin)
            if epochs and epochs > 1 and (epochs > best.epochs) is (quick is best):
                found.append((abs(epochs - best.epochs), epochs, other))
    for more in (True, False):
        beyond = [each for each in found if (each[1] > best.epochs) is more]
        if beyond:
            _, epochs, other = min(beyond, key=lambda each: each[0])
            yield other, more, epochs


def beside_itself(best: Candidate, margin: float) -> Mapping[str, Estimate | bool] | None:
    """A/A: the `ratio` of the setting beside itself, and whether it would be called a `tie`; None for one repeat."""
    found = against_itself(list(best.rates.values()))
    return {"ratio": found, "tie": standing(found, margin) == "tie"} if found else None


def first_and_last_day(best: Candidate) -> Iterator[tuple[str, str, Estimate]]:
    """The first and the last day of a setting's repeats, and the ratio of the last to the first, if these differ."""
    days: dict[str, list[float]] = {}
    for each in best.records:
        if each.run.repeat in best.rates and each.summary:
            days.setdefault(each.summary["started_at"][:10], []).append(best.rates[each.run.repeat])
    if len(days) > 1:
        (first, before), (last, after) = min(days.items()), max(days.items())
        yield first, last, ratio_of_days(after, before)


@dataclass(frozen=True)
class Doubt:
    """The settings of which the intervals do not tell whether they are better, and what would tell.

    `groups`: those that cost the same and would begin to be better at the same speed, together. `far`: those that look
    clearly too slow. `among`: the recommended one and all of them. `widest` is that of these whose repeats are farthest
    apart: its fastest is `spread` times as fast as its slowest. `repeats` of each would tell, in so many `hours`; None
    where more would hardly help.
    """

    groups: Sequence[Sequence[Compared]]
    far: Sequence[Compared]
    among: Sequence[Candidate]
    widest: Candidate
    repeats: int | None

    @property
    def spread(self) -> float:
        return _spread(self.widest)

    @property
    def disturbed(self) -> bool:
        """Whether repeats of one setting are so far apart that something has disturbed them."""
        return self.spread >= FAR_APART

    @property
    def hours(self) -> float:
        return sum(each.training_hours * ((self.repeats or 0) - len(each.speeds)) for each in self.among)


def doubt(answer: Answer) -> Doubt:
    """What is in doubt of an answer that is `unclear`."""
    assert answer.best is not None
    far = [each for each in answer.unclear if each.ratio.value * OUT_OF_QUESTION < answer.turns_at(each)]
    far = far if len(far) > 1 else []
    groups: dict[tuple[float, float], list[Compared]] = {}
    for each in answer.unclear:
        if not any(each is other for other in far):
            groups.setdefault((each.other.cost, answer.turns_at(each)), []).append(each)
    among = [answer.best, *(each.other for each in answer.unclear)]
    widest = max(among, key=_spread)
    in_vain = answer.neighbours and _spread(widest) >= FAR_APART
    return Doubt(list(groups.values()), far, among, widest, None if in_vain else answer.repeats)


def _spread(candidate: Candidate) -> float:
    return max(candidate.speeds) / min(candidate.speeds)
