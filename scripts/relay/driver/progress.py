"""How far the trainings of this machine have come: one line on the terminal, from the records that they write."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from relay.base.errors import UserError
from relay.run_folder import attempts
from relay.spec.run import Run

RESULTS = Path("results")
TERMINAL_SECONDS = 3.0  # between two lines: on a terminal, where each replaces the one before,
FILE_SECONDS = 60.0  # and elsewhere
TAIL_BYTES = 1 << 18  # more than what a trainer writes at once
CLEAR = "\r\x1b[K"


@dataclass(frozen=True)
class Training:
    """A job that trains: its run, the step at which it ends, and the job in words."""

    run: str
    last: int
    words: str


@dataclass
class Progress:
    """Shows what `training` says is running, by Snakemake's number of the job."""

    training: dict[int, Training] = field(default_factory=dict)
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _shown: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While this lasts, a thread shows it."""
        thread = threading.Thread(target=self._show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self.clear()

    def clear(self) -> None:
        """Make room for another line."""
        with self._lock:
            if self._shown:
                self._shown = False
                self.stream.write(CLEAR)
                self.stream.flush()

    def _show(self) -> None:
        terminal = self.stream.isatty()
        while not self._over.wait(TERMINAL_SECONDS if terminal else FILE_SECONDS):
            lines = [line for training in list(self.training.values()) if (line := described(training))]
            try:
                self._write(lines, terminal)
            except OSError:  # a terminal that was closed
                return

    def _write(self, lines: list[str], terminal: bool) -> None:
        with self._lock:
            if terminal and lines:
                self.stream.write(CLEAR + "; ".join(lines)[: shutil.get_terminal_size().columns - 1])
                self._shown = True
            else:
                self.stream.writelines(f"{line}\n" for line in lines)
            self.stream.flush()


def described(training: Training, results: Path = RESULTS) -> str:
    """Epoch, speed and expected end of a job; '' while nothing is known."""
    try:
        run = Run.read(results / "runs" / training.run / "run.json")
        paths = sorted((results / "checkpoints" / training.run / "records").glob("attempt-*.jsonl"))
        known = _records(paths[-1]) if paths else None
    except (OSError, UserError):
        return ""
    if known is None:
        return ""
    (start, started), (step, at), steps_per_second = known
    epoch = f"epoch {step / run.length.steps_per_epoch:.1f} of {run.length.epochs:g}"
    speed = f"{steps_per_second * run.batch.global_batch_size:,.0f} samples/s"
    end = at + (training.last - step) * (at - started) / (step - start)
    clock = time.strftime("%H:%M" if end - time.time() < 86_400 else "%a %d %b %H:%M", time.localtime(end))
    return f"{epoch}, {speed}, ends about {clock}: {training.words}"


def _records(path: Path) -> tuple[tuple[int, float], tuple[int, float], float] | None:
    """Step and time at which an attempt started, and that it has reached; its steps per second of late.

    None where it has not recorded a step yet.
    """
    with path.open("rb") as stream:
        first = attempts.parsed(stream.readline()) or {}
        stream.seek(max(stream.tell(), path.stat().st_size - TAIL_BYTES))
        lines = [line for line in stream.read().splitlines(keepends=True) if line.endswith(b"\n")]
    for line in reversed(lines):
        found = attempts.parsed(line) or {}  # none where the tail began in the midst of it
        if "start" in first and (blocks := found.get("blocks")):
            steps = blocks[-1][1] - blocks[0][0]
            seconds = sum(block[2] for block in blocks)
            return (first["start"], first["time"]), (blocks[-1][1], found["time"]), steps / seconds
    return None
