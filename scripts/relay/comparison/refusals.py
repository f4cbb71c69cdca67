"""Why a setting is struck out though it was trained, and which repeats were made with other code, data or libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from relay.base.grouped import gathered
from relay.comparison.inputs import Record
from relay.comparison.wording import listing
from relay.run_folder.proof_notes import COMPUTING

PROVEN = (*COMPUTING, "dataset")
ALL = (*PROVEN, "training code")
DIGITS = 8  # of a digest, shown
OTHER_CODE = "the code gated is not the code that ran"
Versions = Mapping[str, Any]


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
    return [record for record in group if judged and record.strategy_source not in (None, judged)]


def proven(group: Sequence[Record]) -> bool:
    """Whether the gate's verdict is on what the repeats ran: their code, data and libraries."""
    return not ran_other_code(group) and not any(map(proven_otherwise, group))


def by_repeat(group: Sequence[Record], reason: Callable[[Record], str]) -> list[str]:
    """Each reason with the repeats that have it, such as 'repeats 1 and 3: …' or 'all 3 repeats: …'."""
    repeats_of = gathered((text, record.run.repeat + 1) for record in group if (text := reason(record)))
    return [f"{_repeats(repeats, len(group))}{text}" for text, repeats in repeats_of.items()]


def _repeats(numbers: Sequence[int], count: int) -> str:
    if len(numbers) == count:
        return f"all {count} repeats: " if count > 1 else ""
    if len(numbers) == 1:
        return f"repeat {numbers[0]}: "
    return f"repeats {listing([*map(str, numbers)])}: "


def made_with(source: Mapping[str, Any]) -> Versions:
    """What a summary or a verdict says that it was made with; what it does not say is left out."""
    versions = {name: version for name, version in (source.get("versions") or {}).items() if name in COMPUTING}
    digests = {"dataset": source.get("dataset"), "training code": source.get("training_source")}
    return versions | {name: digest[:DIGITS] for name, digest in digests.items() if digest}


def difference(one: Versions, other: Versions, names: Sequence[str] = ALL) -> str:
    """In what the first differs from the second, such as 'torch 2.12.0, not 2.13.0'; '' where they agree."""
    differing = [name for name in names if name in one and name in other and one[name] != other[name]]
    return ", ".join(f"{name} {one[name]}, not {other[name]}" for name in differing)


def proven_otherwise(record: Record) -> str:
    """Why a run is not proven by its gate's verdict, which was made with other libraries or data; '' where it is."""
    if record.summary is None or record.verdict is None:
        return ""
    other = difference(made_with(record.verdict), made_with(record.summary), PROVEN)
    if not other:
        return ""
    again = f"`rm -r results/equivalence/gates/{record.gate}` lets it be proven again"
    return f"proven with other versions than it ran with: {other}; {again}"


def mixed(groups: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """A warning for each setting, by id, of which repeats are of other code, data or libraries than most of its task.

    `groups` has the repeats of the settings.
    """
    records = (each for group in groups.values() for each in group)
    by_task = gathered((each.run.task.name, made_with(each.summary)) for each in records if each.summary)
    usual = {task: _most_common(of_task) for task, of_task in by_task.items()}
    lines = {name: list(_differing(group, usual.get(group[0].run.task.name, {}))) for name, group in groups.items()}
    return {setting: "; ".join(its) for setting, its in lines.items() if its}


def _differing(group: Sequence[Record], usual: Versions) -> Iterator[str]:
    """A text for each way in which repeats differ from what is usual in the table."""
    finished = [(record.run.repeat + 1, made_with(record.summary)) for record in group if record.summary]
    repeats = gathered((other, repeat) for repeat, versions in finished if (other := difference(versions, usual)))
    for other, numbers in repeats.items():
        which = "" if len(numbers) == len(finished) else f"repeat {', '.join(map(str, numbers))}: "
        yield f"{which}of another version than other rows: {other}"


def _most_common(alike: Sequence[Versions]) -> Versions:
    """What most were made with; what none tells is left out."""
    values_by_name = {name: [each[name] for each in alike if name in each] for name in ALL}
    return {name: Counter(values).most_common(1)[0][0] for name, values in values_by_name.items() if values}
