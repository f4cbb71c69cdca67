"""The records that a run's attempts leave behind: one file of lines for each.

A line is a JSON object with a checksum of its own. The first of an attempt has its run, `start`, the step it went on
from, when its processes were `launched`, and the ranks' facts; the last one `end`, the step it reached; those between
have the losses of the steps that follow `after`. `paused` has the seconds since the line before that were not training,
by what was done. An attempt that was killed has no last line. Steps after the checkpoint from which the next attempt
went on were trained again: they do not count.
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.base.errors import UserError

# The environment variable with the time (seconds since 1970) at which a job, its node prepared, started its processes.
LAUNCHED = "TORCH_RELAY_LAUNCHED"
DEADLINE = "deadline"  # why an attempt stopped: the job's time was nearly over
TAIL_BYTES = 1 << 18  # more than what a trainer writes at once


def attempt_path(work: Path, attempt: int) -> Path:
    """Where the records of an attempt lie."""
    return work / "records" / f"attempt-{attempt:04}.jsonl"


def gone(work: Path) -> str:
    """The line for a folder that has vanished under a job's processes: it names the uppermost one that is missing."""
    missing = [place for place in (work, *work.parents) if not place.exists()]
    return f"{[work, *missing][-1]} is gone: it was removed, or its disk unmounted, while the job was running"


def numbers(work: Path) -> list[int]:
    """The attempts that have left records, in order."""
    names = (path.stem.removeprefix("attempt-") for path in (work / "records").glob("attempt-*.jsonl"))
    return sorted(int(number) for number in names if number.isdecimal())


def read(work: Path, attempt: int) -> list[dict[str, Any]]:
    """An attempt's lines, but for those that are damaged, were cut off by a kill, or tell the same steps again; none
    where its beginning is lost, or is that of another run.

    What is missing then shows as steps without a loss.
    """
    try:
        lines = attempt_path(work, attempt).read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    records = [values for line in lines if line.endswith(b"\n") and (values := parsed(line))]
    begins = bool(records) and isinstance(records[0].get("start"), int) and records[0].get("run") in (None, work.name)
    return _once(records) if begins else []


def _once(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
    """Add a line to the file, `durable` on its disk. Raises OSError."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line_of(values))
        if durable:
            stream.flush()
            os.fsync(stream.fileno())


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
