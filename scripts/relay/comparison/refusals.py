"""Why a setting is struck out though it was trained: its gate's problems, or runs that the gate has not proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.comparison.inputs import Record
from relay.comparison.versions import proven_otherwise

OTHER_CODE = "the code gated is not the code that ran"


def refusals(group: Sequence[Record]) -> list[str]:
    """Why a setting is struck out: what its gate says, and what is found against runs that its own went on from."""
    return [*_of_the_gate(group), *by_repeat(group, lambda record: "; ".join(record.inherited))]


def _of_the_gate(group: Sequence[Record]) -> list[str]:
    """The gate's problems, or that it has judged something else than what ran."""
    verdict = group[0].verdict
    assert verdict is not None
    if not proven(group):
        other = ran_other_code(group)
        return by_repeat(group, lambda record: OTHER_CODE if record in other else proven_otherwise(record))
    if verdict["equivalent"] or verdict.get("unprovable"):
        return []
    failed = [f"{part['name']} failed" for part in verdict["parts"] if not part["passed"]]
    return list(map(str, verdict["problems"])) or failed or ["the equivalence gate failed"]


def ran_other_code(group: Sequence[Record]) -> list[Record]:
    """The repeats that ran, or run, other code of the strategy than the gate has judged."""
    verdict = group[0].verdict
    judged = verdict["strategy_source"] if verdict else None  # None: no code at all, as of scripts
    return [r for r in group if judged and r.strategy_source not in (None, judged)]


def proven(group: Sequence[Record]) -> bool:
    """Whether the gate's verdict is on what the repeats ran: their code, data and libraries."""
    return not ran_other_code(group) and not any(map(proven_otherwise, group))


def by_repeat(group: Sequence[Record], reason: Callable[[Record], str]) -> list[str]:
    """Each reason with the repeats that have it, such as 'repeats 1 and 3: …' or 'all 3 repeats: …'."""
    repeats_of: dict[str, list[int]] = {}
    for record in group:
        if text := reason(record):
            repeats_of.setdefault(text, []).append(record.run.repeat + 1)
    return [f"{_repeats(repeats, len(group))}{text}" for text, repeats in repeats_of.items()]


def _repeats(numbers: Sequence[int], count: int) -> str:
    if len(numbers) == count:
        return f"all {count} repeats: " if count > 1 else ""
    if len(numbers) == 1:
        return f"repeat {numbers[0]}: "
    return f"repeats {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}: "
