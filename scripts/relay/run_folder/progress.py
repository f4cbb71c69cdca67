"""How far a run has come, and how fast it trains: by its checkpoints, or by what a script tells; by its records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from relay.base.files import read_json_or
from relay.run_folder import attempts
from relay.run_folder.sealed import complete

REACHED = "reached.json"  # the newest step that a script has saved, as it tells
TAIL_BYTES = 1 << 18  # more than what a trainer writes at once


def saved_step(work: Path) -> int:
    """The step of the newest checkpoint, a script's own included; 0 where there is none."""
    step = read_json_or(work / REACHED, {}).get("step")
    return max([*complete(work), step if isinstance(step, int) else 0])


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
    numbers = attempts.numbers(work)
    if not numbers:
        return None
    path = attempts.attempt_path(work, numbers[-1])
    with path.open("rb") as stream:
        first = attempts.parsed(stream.readline()) or {}
        stream.seek(max(stream.tell(), path.stat().st_size - TAIL_BYTES))
        lines = [line for line in stream.read().splitlines(keepends=True) if line.endswith(b"\n")]
    for line in reversed(lines):
        record = attempts.parsed(line) or {}  # none where the tail began in the midst of it
        if "start" in first and (blocks := record.get("blocks")):
            steps = blocks[-1][1] - blocks[0][0]
            seconds = sum(block[2] for block in blocks)
            return Pace(first["start"], first["time"], blocks[-1][1], record["time"], steps / seconds)
    return None
