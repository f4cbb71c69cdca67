"""A run's chain: to which start its checkpoints belong, which code it runs, which attempts it had, what was measured.

`chain.json` beside the checkpoints says it. Every checkpoint's manifest holds a copy, so that a chain whose file is
lost or damaged is known again. Beside `run.json`, `start.json` declares a start, and `begun.json` keeps that its
training has begun.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from relay.base import typed
from relay.base.files import read_json_or, write_json_over
from relay.chain.sealed import complete, manifest, sound, step_of
from relay.run_folder import attempts
from relay.run_folder.attempts import Records
from relay.run_folder.sound_checkpoints import damage

CHAIN = "chain.json"  # beside the checkpoints
START = "start.json"  # beside run.json
BEGUN = "begun.json"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What the processes of one job do of a run: the steps after `first`, up to `last`.

    It `found` a step saved. Times are in seconds since 1970; None for what nobody has told. `submitted`, `job_started`
    and `shares_nodes` are of its job. Of one of Slurm's there is also its id (`job`), and how often Slurm has started
    it again (`restarts`).
    """

    number: int
    started: float
    first: int = 0
    last: int = 0
    ended: float | None = None
    submitted: float | None = None
    job_started: float | None = None
    shares_nodes: bool | None = None
    job: str | None = None
    restarts: str = "0"
    found: int = 0


@dataclass(frozen=True, kw_only=True)
class RunChain:
    """The chain of one start (`generation`): the name of its frozen `code`, digests of parts of it, and its attempts.

    `adopted_from` says from which run's checkpoint it went on, with that run's own `adopted_from`; None for a run that
    began at step 0. `measured` is what its first processes have measured for all later ones, such as where a pipeline
    is cut: with another cut, it would not go on bit for bit.
    """

    generation: str
    code: str
    strategy_source: str
    training_source: str | None = None
    adopted_from: Mapping[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def adopted_step(self) -> int:
        """The step of the checkpoint that was taken over; 0 where none was."""
        return int(self.adopted_from["step"]) if self.adopted_from else 0

    def as_dict(self) -> dict[str, Any]:
        """As `chain.json` holds it."""
        entries = ({name: value for name, value in asdict(each).items() if value is not None} for each in self.attempts)
        return asdict(self) | {"attempts": list(entries)}

    def write(self, work: Path) -> None:
        """Keep it beside the checkpoints. Raises OSError."""
        write_json_over(work / CHAIN, self.as_dict())

    def recorded(self, work: Path) -> list[tuple[Attempt, Records]]:
        """The attempts with their records, which are empty where none are there."""
        return [(each, attempts.read(work, each.number)) for each in self.attempts]


def read(work: Path) -> RunChain | None:
    """The chain of the checkpoints in `work`; from a manifest where its file is lost or damaged; None without any."""
    if chain := _of(read_json_or(work / CHAIN, None)):
        return chain
    for place in sound((work / f"step-{step}" for step in complete(work)), damage):
        if chain := _of(manifest(place).get("chain")):
            source = f"the checkpoint of step {step_of(place)}"
            print(f"warning: {work / CHAIN} is lost or damaged: what it said is taken from {source}", file=sys.stderr)
            return replace(chain, attempts=_with_later(work, chain.attempts))
    return None


def recorded(work: Path) -> list[tuple[Attempt, Records]]:
    """The attempts of the chain in `work` with their records; none without a chain."""
    chain = read(work)
    return chain.recorded(work) if chain else []


def _of(content: Any) -> RunChain | None:
    """The chain of a file's content; None where it is none."""
    chain = typed.typed_or_none(RunChain, content)
    from_nowhere = chain and chain.adopted_from is not None and not isinstance(chain.adopted_from.get("step"), int)
    return None if from_nowhere else chain


def _with_later(work: Path, noted: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """The attempts, and those that came after them, as far as their records tell."""
    numbers = {each.number for each in noted}
    later = [
        Attempt(number=number, started=records.began, first=records.start)
        for number in attempts.numbers(work)
        if number not in numbers and (records := attempts.read(work, number))
    ]
    return tuple(sorted([*noted, *later], key=lambda each: each.number))


def note_end(work: Path, generation: str, number: int, ended: float | None) -> None:
    """Note when an attempt ended, if the chain is still the one that it belonged to.

    None: the attempt is forgotten, with all that it recorded. Raises OSError.
    """
    chain = read(work)
    if chain is None or chain.generation != generation:  # another start has begun meanwhile
        return
    kept = [each for each in chain.attempts if each.number != number or ended is not None]
    entries = (replace(each, ended=ended) if each.number == number else each for each in kept)
    replace(chain, attempts=tuple(entries)).write(work)
    if ended is None:
        attempts.forget(work, number)


def measured(work: Path) -> Mapping[str, Any]:
    """What the chain's first processes have measured; nothing before that."""
    chain = read(work)
    return chain.measured if chain else {}


def note_measured(work: Path, values: Mapping[str, Any]) -> None:
    """Keep what was measured, in its own order: that of a network's layers. Raises OSError."""
    chain = read(work)
    if chain and chain.measured != values:
        replace(chain, measured=values).write(work)


def dataset(work: Path) -> str | None:
    """The digest of the dataset with which the newest attempt trained that has left records; None where none is known.

    A chain that went on from another run's checkpoint, and has trained no step of its own, trained with that run's.
    """
    chain = read(work)
    if chain is None:
        return None
    for attempt in reversed(chain.attempts):
        if records := attempts.read(work, attempt.number):
            return next((rank.get("dataset") for rank in records.ranks), None)
    return (chain.adopted_from or {}).get("dataset")


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
    return _generation(run, read_json_or(run / START, None))


def _generation(run: Path, note: Any) -> str | None:
    generation = note.get("generation") if isinstance(note, dict) and note.get("run", run.name) == run.name else None
    return generation if isinstance(generation, str) and generation else None


def of_another_start(run: Path, work: Path) -> str | None:
    """Why what lies in `work` is not what a run's declared start has trained; None where it is, or is not known."""
    chain, expected = read(work), declared(run)
    if chain is None or expected is None or chain.generation == expected:
        return None
    return (
        f"the records in {work} are those of another run, or of an older start; put its own back, or delete {run} to "
        "train it from the start"
    )
