"""The records that a run's attempts leave behind: one file of lines for each.

A line is a JSON object with a checksum of its own. The first of an attempt has its run, `start`, the step it went on
from, when its processes were `launched`, and the ranks' facts; the last one `end`, the step it reached; those between
have the losses of the steps that follow `after`. `paused` has the seconds since the line before that were not training,
by what was done. An attempt that was killed has no last line. Steps after the checkpoint from which the next attempt
went on were trained again: they do not count.
"""

import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.base.errors import UserError

# The environment variable with the time (seconds since 1970) at which a job, its node prepared, started its processes.
LAUNCHED = "TORCH_RELAY_LAUNCHED"
FIRST_EVALUATION = "first evaluation"  # in `paused`, where it compiles the model
Line = dict[str, Any]
TAIL_BYTES = 1 << 18  # more than what a trainer writes at once


def attempt_path(work: Path, attempt: int) -> Path:
    """Where the records of an attempt lie."""
    return work / "records" / f"attempt-{attempt:04}.jsonl"


def gone(work: Path) -> str:
    """The line for a folder that has vanished under a job's processes: it names the uppermost one that is missing."""
    missing = [place for place in (work, *work.parents) if not place.exists()]
    return f"{[work, *missing][-1]} is gone: it was removed, or its disk unmounted, while the job was running"


def forget(work: Path, attempt: int) -> None:
    """Remove all files that have an attempt's number: the next attempt has it, too. Raises OSError."""
    for path in [*work.glob(f"*/attempt-{attempt:04}[.-]*"), *work.glob(f"records/*-{attempt:04}.*")]:
        path.unlink(missing_ok=True)


def numbers(work: Path) -> list[int]:
    """The attempts that have left records, in order."""
    names = (path.stem.removeprefix("attempt-") for path in (work / "records").glob("attempt-*.jsonl"))
    return sorted(int(number) for number in names if number.isdecimal())


@dataclass(frozen=True)
class Records:
    """What an attempt has recorded: its lines. False where none are left. Times are in seconds since 1970."""

    lines: Sequence[Line] = ()

    def __bool__(self) -> bool:
        return bool(self.lines)

    @property
    def start(self) -> int:
        """The step from which it went on."""
        return int(self.lines[0]["start"])

    @property
    def ranks(self) -> Sequence[Mapping[str, Any]]:
        """What each rank ran on."""
        return self.lines[0].get("ranks", ())

    @property
    def began(self) -> float:
        """When its processes were ready."""
        return float(self.lines[0]["time"])

    @property
    def last_at(self) -> float:
        """When its last line was written."""
        return float(self.lines[-1]["time"])

    @property
    def end(self) -> Line:
        """The line with which it came to an end; empty where it was killed."""
        return self.lines[-1] if self.lines and "end" in self.lines[-1] else {}

    @property
    def trained_nothing(self) -> bool:
        """Whether it came to its planned end without a step, as where none was left to train, and told nothing more.

        A script may be killed before its last evaluation: the next job then only prints the accuracy, which is `read`.
        """
        if any(line.get(name) for line in self.lines for name in ("losses", "blocks", "read", "first_at")):
            return False
        # Where a disk has damaged the lines between, the end alone knows of the steps.
        return bool(self.end) and not self.end.get("stopped") and self.end["end"] <= self.start

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The training losses, each with its step."""
        pairs, step = [], self.start
        for line in self.lines:
            step = line.get("after", step)  # a line before it may be lost
            for loss in line.get("losses", ()):
                step += 1
                pairs.append((step, loss))
        return pairs

    def all_of(self, name: str) -> list[Any]:
        """What its lines list by this name: blocks, evaluations."""
        return [each for line in self.lines for each in line.get(name, ())]

    def paused(self, activity: str) -> float:
        """The seconds that were not training, but this."""
        return math.fsum(line.get("paused", {}).get(activity, 0.0) for line in self.lines)

    @property
    def compiled(self) -> float:
        """The seconds by which a first evaluation that compiles took longer than the others; 0 where there are none."""
        first, others = self.paused(FIRST_EVALUATION), self.paused("evaluation")
        count = len(self.all_of("evaluations")) - 1
        return max(0.0, first - others / count) if count > 0 else 0.0


@dataclass(frozen=True)
class Counted:
    """What counts of an attempt: no step that a later attempt has trained again."""

    start: int
    blocks: list[list[float]]
    losses: list[tuple[int, float]]
    evaluations: list[dict[str, Any]]


def counted(attempts: Sequence[Records]) -> list[Counted]:
    """What counts of each attempt that has recorded anything.

    Records are flushed with every checkpoint, so that no block straddles one.
    """
    newest_first: list[Counted] = []
    limit = math.inf
    for records in reversed([each for each in attempts if each]):
        blocks = [block for block in records.all_of("blocks") if block[1] <= limit]
        every = records.losses
        losses = [(step, loss) for step, loss in every if step <= limit]
        evaluations = [each for each in records.all_of("evaluations") if each["step"] <= limit]
        newest_first.append(Counted(records.start, blocks, losses, evaluations))
        if every:  # one that trained nothing has trained nothing again: its segment had been done before
            limit = min(limit, records.start)
    return newest_first[::-1]


def read(work: Path, attempt: int) -> Records:
    """An attempt's records, but for lines that are damaged, were cut off by a kill, or tell the same steps again; none
    where its beginning is lost, or is that of another run.

    What is missing then shows as steps without a loss.
    """
    whole = lines_of(attempt_path(work, attempt))
    begins = bool(whole) and isinstance(whole[0].get("start"), int) and whole[0].get("run") in (None, work.name)
    return Records(_once(whole)) if begins else Records()


def _once(lines: list[Line]) -> list[Line]:
    """The lines without those that tell again what was told before, such as a file that was appended to itself."""
    kept, reached = lines[:1], int(lines[0]["start"])
    for line in lines[1:]:
        if "start" in line or line.get("after", reached) < reached:
            continue
        kept.append(line)
        reached = line.get("after", reached) + len(line.get("losses", ()))
        if "end" in line:
            break
    return kept


def line_of(values: Mapping[str, Any]) -> str:
    """A line of the records, with its checksum."""
    text = json.dumps(values)
    return f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}\n'


def append(path: Path, values: Mapping[str, Any], *, durable: bool = False) -> None:
    """Add a line to the file, `durable` on its disk. Raises OSError, and leaves no part of the line."""
    rest = line_of(values).encode()
    with path.open("ab", buffering=0) as stream:
        end = stream.tell()
        try:
            while rest:  # a disk may take what it has room for
                rest = rest[stream.write(rest) :]
            if durable:
                os.fsync(stream.fileno())
        except OSError:
            with suppress(OSError):
                stream.truncate(end)  # else the next line would begin within this one
            raise


def record(work: Path, attempt: int, **values: Any) -> None:
    """Add a line to the records of an attempt, with the time: as durable as the checkpoint that follows.

    Raises UserError where the folder is gone, and OSError.
    """
    try:
        append(attempt_path(work, attempt), {"time": time.time(), **values}, durable=True)
    except FileNotFoundError:
        raise UserError(gone(work)) from None


def record_begin(work: Path, attempt: int, step: int, ranks: Sequence[Mapping[str, Any]]) -> None:
    """Begin the records of an attempt that goes on from `step`; `ranks` are the facts of each."""
    launched = os.environ.get(LAUNCHED)
    launch = {"launched": float(launched)} if launched else {}
    attempt_path(work, attempt).parent.mkdir(exist_ok=True)
    record(work, attempt, run=work.name, start=step, ranks=ranks, **launch)


def lines_of(path: Path) -> list[Line]:
    """The lines of a file, without those that are damaged or were cut off by a kill; none where there is no file."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return [values for line in lines if line.endswith(b"\n") and (values := parsed(line))]


def parsed(line: bytes) -> dict[str, Any] | None:
    """The values of a line; None where it is damaged."""
    try:
        values = json.loads(line)
        checksum = values.pop("crc32", None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    if checksum is not None and checksum != f"{zlib.crc32(json.dumps(values).encode()):08x}":
        return None
    return dict(values)


@dataclass(frozen=True)
class Pace:
    """An attempt that trains: the step and the time at which it started, and those that it has reached.

    Times are in seconds since 1970. `steps_per_second` is of its last records; an evaluation between is not in it.
    """

    start: int
    started: float
    step: int
    reached: float
    steps_per_second: float

    def seconds_to(self, last: int) -> float:
        """Seconds until step `last`, from when the records were written; evaluations and saves are in it."""
        return (last - self.step) * (self.reached - self.started) / (self.step - self.start)


def pace(work: Path) -> Pace | None:
    """The pace of the newest attempt. None where it has not recorded a step yet. Raises OSError."""
    newest = max(numbers(work), default=None)
    if newest is None:
        return None
    path = attempt_path(work, newest)
    with path.open("rb") as stream:
        first = parsed(stream.readline()) or {}
        stream.seek(max(stream.tell(), path.stat().st_size - TAIL_BYTES))
        lines = [line for line in stream.read().splitlines(keepends=True) if line.endswith(b"\n")]
    for line in reversed(lines):
        record = parsed(line) or {}  # none where the tail began in the midst of it
        if "start" in first and (blocks := record.get("blocks")):
            steps = blocks[-1][1] - blocks[0][0]
            seconds = sum(block[2] for block in blocks)
            return Pace(first["start"], first["time"], blocks[-1][1], record["time"], steps / seconds)
    return None


DIVERGED = ": the training diverged; try a smaller `learning_rate`, or precision fp32 where it is a lower one"


def not_finite(
    losses: Iterable[tuple[int, float]],
    evaluations: Iterable[Mapping[str, Any]],
    why: Callable[[str, int], str] = lambda _name, _step: "",
) -> str:
    """Which loss is no number or infinite, and what to do; '' where all are finite.

    `losses` are (step, training loss); of `evaluations` it reads `step` and `test_loss`. `why` is asked for the set,
    `train` or `test`, and the step; where it knows no cause, the training diverged.
    """
    faulty = [(step, 0, loss) for step, loss in losses if not math.isfinite(loss)]
    faulty += [(e["step"], 1, e["test_loss"]) for e in evaluations if not math.isfinite(e["test_loss"])]
    if not faulty:
        return ""
    step, of_test, value = min(faulty)  # of one step, the training's comes first
    which, name = ("the test loss", "test") if of_test else ("the training loss", "train")
    return f"{which} of step {step} is {value}{why(name, step) or DIVERGED}"
