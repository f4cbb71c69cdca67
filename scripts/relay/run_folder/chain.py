"""A run's chain: to which start its checkpoints belong, which code it runs, and which attempts it had.

`chain.json` beside the checkpoints says it. Every checkpoint's manifest holds a copy, so that a chain whose file is
lost or damaged is known again. `begun.json` beside `run.json` keeps that a start's training has begun.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from relay.base.files import read_json_or, write_json_over
from relay.chain.sealed import sound, step_of
from relay.run_folder import attempts
from relay.run_folder.sealed import complete, damage, manifest

CHAIN = "chain.json"
BEGUN = "begun.json"


def read(work: Path) -> dict[str, Any] | None:
    """The chain of the checkpoints in `work`; from a manifest where its file is lost or damaged; None without any."""
    chain = read_json_or(work / CHAIN, None)
    if _is_chain(chain):
        return dict(chain)
    for place in sound((work / f"step-{step}" for step in complete(work)), damage):
        if _is_chain(chain := manifest(place).get("chain")):
            source = f"the checkpoint of step {step_of(place)}"
            print(f"warning: {work / CHAIN} is lost or damaged: what it said is taken from {source}", file=sys.stderr)
            return dict(chain) | {"attempts": _with_later(work, list(chain["attempts"]))}
    return None


def write(work: Path, chain: Mapping[str, Any]) -> None:
    """Keep the chain. Raises OSError."""
    write_json_over(work / CHAIN, dict(chain))


def next_number(work: Path, chain: Mapping[str, Any]) -> int:
    """The number of the attempt that begins: none of those known, and none whose records are there."""
    return max((0, *(entry["number"] for entry in chain["attempts"]), *attempts.numbers(work))) + 1


def note_end(work: Path, generation: str, number: int, ended: float) -> dict[str, Any] | None:
    """Note when an attempt ended, if the chain is still the one that it belonged to; returns that chain."""
    chain = read(work)
    if chain is None or chain["generation"] != generation:  # another start has begun meanwhile
        return None
    for entry in chain["attempts"]:
        if entry["number"] == number:
            entry["ended"] = ended
    write(work, chain)
    return chain


def dataset(work: Path) -> str | None:
    """The digest of the dataset with which the newest attempt trained that has left records; None where none is known.

    A chain that went on from another run's checkpoint, and has trained no step of its own, trained with that run's.
    """
    chain = read(work) or {"attempts": []}
    for entry in reversed(chain["attempts"]):
        if lines := attempts.read(work, entry["number"]):
            return next((rank.get("dataset") for rank in lines[0].get("ranks", ())), None)
    return (chain.get("adopted_from") or {}).get("dataset")


def begun(run: Path) -> str | None:
    """The start (its generation) whose training has begun; None where none has. `run` is the folder of `run.json`."""
    return _generation(run, read_json_or(run / BEGUN, None))


def note_begun(run: Path, generation: str) -> None:
    """Keep that this start's training has begun. From then on, a chain that is not there is lost, not new."""
    if begun(run) != generation:
        write_json_over(run / BEGUN, {"generation": generation, "run": run.name})


def declared(run: Path) -> str | None:
    """The start that the workflow has declared; that whose training has begun where the file is damaged.

    None where neither is known.
    """
    return declared_there(run) or begun(run)


def declared_there(run: Path) -> str | None:
    """The start that the file itself declares; None where it is missing, damaged or another run's."""
    return _generation(run, read_json_or(run / CHAIN, None))


def of_another_start(run: Path, work: Path) -> str | None:
    """Why what lies in `work` is not what a run's declared start has trained; None where it is, or is not known."""
    chain, expected = read(work), declared(run)
    if chain is None or expected is None or chain["generation"] == expected:
        return None
    return (
        f"the records in {work} are those of another run, or of an older start; put its own back, or delete {run} to "
        "train it from the start"
    )


def _generation(run: Path, note: Any) -> str | None:
    generation = note.get("generation") if isinstance(note, dict) and note.get("run", run.name) == run.name else None
    return generation if isinstance(generation, str) and generation else None


def _is_chain(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict) or not isinstance(value.get("attempts"), list):
        return False
    words = all(isinstance(value.get(name), str) for name in ("generation", "code", "strategy_source"))
    adopted = value.get("adopted_from")
    from_another = adopted is None or (isinstance(adopted, dict) and isinstance(adopted.get("step"), int))
    return words and from_another and all(map(_is_entry, value["attempts"]))


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("number"), int)
        and isinstance(entry.get("started"), int | float)
        and isinstance(entry.get("ended", 0.0), int | float)
    )


def _with_later(work: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempts, and those that came after them, as far as their records tell."""
    numbers = {entry["number"] for entry in entries}
    for number in attempts.numbers(work):
        lines = attempts.read(work, number)
        if number not in numbers and lines:
            entries.append({"number": number, "started": lines[0]["time"], "first": lines[0]["start"]})
    return sorted(entries, key=lambda entry: int(entry["number"]))
