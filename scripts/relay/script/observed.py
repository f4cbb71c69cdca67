"""What is known of a command's course: from its output by patterns, or from what it reports of itself.

A block is [step before, step after, seconds, 0, samples]: the records of a task's runs have the first four as well.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from relay.spec.script import Counted, Script

LEAST_SECONDS = 0.1  # of a block; shorter ones are put together
LATER_SECONDS = 1.0  # of a block after the first minute
FIRST_SECONDS = 60.0
KEPT_LINES = 40
MOST_VALUES = 100  # losses of one record
SHOWN_LINES = 8


class Observed:
    """Gathers what a command tells. `line` is called by the thread that reads its output, all else by the main one.

    `problem` is what was read where a number should be; '' as long as there is none.
    """

    def __init__(self, script: Script, batch: int, warmup_steps: int, report: Path) -> None:
        self._patterns = {name: re.compile(pattern) for name, pattern in script.read.items()}
        self._counts: Counted = script.counts
        self._batch, self._warmup_steps, self._report = batch, warmup_steps, report
        self._reading, self._rest = 0, ""  # how far the report was read, and the part of a line after that
        self._lock = threading.Lock()
        self._values: dict[str, list[float]] = {}
        self._blocks: list[list[float]] = []
        self._last: tuple[float, int, float | None] | None = None  # when, which step, samples so far
        self._newest = 0
        self._told_steps = self._steps = 0  # as the output tells, and from the command's start
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.began = time.time()
        self.first_at: float | None = None
        self.first_step = 0
        self.saved = 0
        self.matched: set[str] = set()
        self.problem = ""

    @property
    def step(self) -> int:
        """The last step of which is known; 0 before the first."""
        return self._newest

    def line(self, text: str, now: float) -> None:
        """Take in a line of the output."""
        with self._lock:
            self.lines.append(text)
            for name, pattern in self._patterns.items():
                if found := pattern.search(text):
                    self._read(name, found[1] or "", text, now)

    def _read(self, name: str, told: str, line: str, now: float) -> None:
        try:
            value = float(told.replace(",", ""))
        except ValueError:
            self.problem = self.problem or f"read.{name}: '{told}' is no number, in the line '{line[:200]}'"
            return
        self.matched.add(name)
        if name == "samples_per_second":
            self._speed(value, now)
        elif name == "step" and "samples_per_second" not in self._patterns:
            self._step(int(value), now)
        elif name != "step":
            self._values.setdefault(name, []).append(value)

    def _speed(self, samples_per_second: float, now: float) -> None:
        """The speed of the time since the last one was told."""
        if self._last:
            self._block(self._last, (now, self._last[1] + 1, None), samples_per_second)
        else:
            self._begin(now, 0)
            self._only = samples_per_second
        self._newest = self._last[1] + 1 if self._last else 1
        self._last = (now, self._newest, None)

    def _step(self, told: int, now: float) -> None:
        """A step's number; it may begin anew in each epoch."""
        self._steps += told - self._told_steps if told > self._told_steps else told
        self._told_steps = told
        self._at(now, self._steps, None)

    def _at(self, now: float, step: int, samples: float | None) -> None:
        """Step `step` has ended by now."""
        self._newest = max(self._newest, step)
        if self._last is None:
            self._begin(now, step)
            self._last = (now, step, samples)
            return
        least = LEAST_SECONDS if now - self.began < FIRST_SECONDS else LATER_SECONDS
        if self._last[1] < self.first_step + self._warmup_steps <= step:
            least = 0.0  # here the steps begin that are timed
        if step <= self._last[1] or now - self._last[0] < least:
            return
        self._block(self._last, (now, step, samples), None)
        self._last = (now, step, samples)

    def _begin(self, now: float, step: int) -> None:
        self.first_at, self.first_step = now, step

    def _block(
        self, before: tuple[float, int, float | None], after: tuple[float, int, float | None], speed: float | None
    ) -> None:
        seconds, steps = after[0] - before[0], after[1] - before[1]
        if seconds <= 0:
            return
        samples: float = steps * (self._batch if self._counts == "samples" else 1)
        if before[2] is not None and after[2] is not None:
            samples = after[2] - before[2]
        if speed is not None:
            samples = speed * seconds
        self._blocks.append([before[1], after[1], round(seconds, 6), 0.0, samples])

    def _read_report(self) -> None:
        """Take in what the command has reported since the last time."""
        try:
            with self._report.open(encoding="utf-8") as stream:
                stream.seek(self._reading)
                *lines, self._rest = (self._rest + stream.read()).split("\n")
                self._reading = stream.tell()
        except OSError:
            return
        for line in lines:
            first, *others = line.split()
            if first in ("saved", "resumed"):
                self.saved = max(self.saved, int(others[0]))
                continue
            self.matched.add("report")
            if not {"samples_per_second", "step"} & {*self._patterns}:
                told = None if others[1] == "-" else float(others[1])
                self._at(float(first), int(others[0]), told)

    def take(self) -> dict[str, Any]:
        """What has come since the last time, as a line of the records."""
        with self._lock:
            self._read_report()
            values = {name: found[:: -(-len(found) // MOST_VALUES)] for name, found in self._values.items()}
            taken = {"blocks": self._blocks, "read": values, "step": self.step}
            self._blocks, self._values = [], {}
            return taken

    def whole(self, seconds: float) -> list[list[float]]:
        """The one block of a command of which nothing is known but how long it took, or one speed at its end."""
        if self._counts == "runs":
            return [[0, 1, seconds, 0.0, 1]]
        if "samples_per_second" in self.matched and self.step == 1:
            return [[0, 1, seconds, 0.0, self._only * seconds]]
        return []

    def missing(self) -> str:
        """What the command should have told by its end and has not; '' where it has told all."""
        for name in self._patterns:
            if name not in self.matched:
                return f"read.{name}: the pattern '{self._patterns[name].pattern}' matches nothing in the output"
        told = self._patterns.keys() & {"samples_per_second", "step"}
        if self._counts != "runs" and not told and not self.matched and not self.saved:
            return "it ended with status 0 without a single step: none was reported by relay.chain"
        return ""

    def shown(self) -> str:
        """The last lines of the output, for an error."""
        with self._lock:
            last = [line for line in self.lines if line.strip()][-SHOWN_LINES:]
        return "; it printed nothing" if not last else "; its last lines:\n" + "\n".join(f"| {line}" for line in last)
