"""Which repeats of two settings are compared with each other: those of one time, round by round."""

from __future__ import annotations

from collections.abc import Sequence

from relay.base.clock import other_day
from relay.comparison.inputs import Record
from relay.comparison.statistics import Rounds


def paired(
    values: Rounds, records: Sequence[Record], others: Rounds, beside: Sequence[Record]
) -> tuple[Rounds, Rounds]:
    """Two settings' values by repeat, without repeats that were measured on a day on which the other setting was not.

    Where some are left out, the others are paired in their order: a setting that is measured again beside a new one
    has other numbers of repeats. A single one that was measured again stays. Where no day is common, all are returned,
    and the answer says so.
    """
    mine, theirs = _starts(values, records), _starts(others, beside)
    kept = [each for each in values if _near(mine.get(each), [*theirs.values()])]
    kept_others = [each for each in others if _near(theirs.get(each), [*mine.values()])]
    left_out = max(len(values) - len(kept), len(others) - len(kept_others))
    if not kept or not kept_others or left_out <= 1:
        return values, others
    return (
        {place: values[repeat] for place, repeat in enumerate(sorted(kept))},
        {place: others[repeat] for place, repeat in enumerate(sorted(kept_others))},
    )


def _starts(values: Rounds, records: Sequence[Record]) -> dict[int, str]:
    starts = {each.run.repeat: (each.summary or {}).get("started_at") for each in records}
    return {repeat: start for repeat, start in starts.items() if start and repeat in values}


def _near(start: str | None, others: Sequence[str]) -> bool:
    return not start or not others or any(not other_day(start, other) for other in others)
