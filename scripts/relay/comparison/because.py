"""Why one setting is slower than another: the part of a step that takes longer, where steps were observed."""

from __future__ import annotations

from relay.comparison.candidates import Candidate
from relay.comparison.wording import number, percent
from relay.run_folder.step_split import COLUMNS

MOST = 0.5  # of the difference: a part that takes less of it is not the reason
WORTH_TELLING = 0.1  # of a step's time
WORDS = {
    "data": "waiting for data",
    "compute": "computing",
    "communication": "communication that no computing hides",
    "optimizer": "updating the parameters",
    "no_cpu": "waiting for a free CPU",
    "idle": "GPUs that wait for work",
}


def difference(one: Candidate, other: Candidate) -> str:
    """A sentence on the part of a step that makes the slower of two slower; '' where no part is most of it."""
    quick, slow = sorted((one, other), key=lambda each: -each.speed.value)
    if (found := _most(quick, slow)) is None:
        return ""
    part, whole = found
    share, its = (percent(each.row[COLUMNS[part]], 0) for each in (slow, quick))
    return (
        f"For {slow.piece}, {slow.name} needs {number(whole, 2)} s more. Most of that is {WORDS[part]}: {share} of its "
        f"steps' time, {its} of the other's."
    )


def slower(best: Candidate, other: Candidate) -> str:
    """What makes a setting slower than the best one, in a few words; '' where it is not, or no part is most of it."""
    found = _most(best, other)
    return f"{WORDS[found[0]]}: {percent(other.row[COLUMNS[found[0]]], 0)} of its steps' time" if found else ""


def _most(quick: Candidate, slow: Candidate) -> tuple[str, float] | None:
    """The part that is most of what a slower setting's epoch takes longer, and the seconds of all that."""
    if any(each.row[COLUMNS["compute"]] is None for each in (quick, slow)):
        return None
    longer = {part: _seconds(slow, part) - _seconds(quick, part) for part in COLUMNS}
    whole = sum(longer.values())
    part = max(longer, key=lambda each: longer[each])
    return (part, whole) if whole > 0 and longer[part] >= MOST * whole else None


def overhead(candidate: Candidate) -> str:
    """A sentence on what a setting's steps do most besides computing; '' where that is little, or not known."""
    shares = {part: candidate.row[name] or 0.0 for part, name in COLUMNS.items() if part != "compute"}
    part = max(shares, key=lambda each: shares[each])
    return f"Of its steps' time {percent(shares[part], 0)} is {WORDS[part]}." if shares[part] >= WORTH_TELLING else ""


def _seconds(candidate: Candidate, part: str) -> float:
    """The seconds of a part in an epoch's steps."""
    return candidate.seconds_per_piece.value * float(candidate.row[COLUMNS[part]] or 0.0)
