"""How far the trainings of this machine have come: one line on the terminal, from the records that they write."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from relay.base.clock import clock
from relay.base.errors import UserError
from relay.run_folder import pace
from relay.spec.run import Run

RESULTS = Path("results")
TERMINAL_SECONDS = 3.0  # between two lines: on a terminal, where each replaces the one before,
FILE_SECONDS = 60.0  # and elsewhere
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
        known = pace.newest(results / "checkpoints" / training.run)
    except (OSError, UserError):
        return ""
    if known is None:
        return ""
    epoch = f"epoch {known.step / run.length.steps_per_epoch:.1f} of {run.length.epochs:g}"
    speed = f"{known.steps_per_second * run.batch.global_batch_size:,.0f} samples/s"
    end = clock(known.reached + known.seconds_to(training.last))
    return f"{epoch}, {speed}, ends about {end}: {training.words}"
