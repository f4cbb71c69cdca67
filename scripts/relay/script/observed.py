"""What is known of a command's course: from its output by patterns, or from what it reports of itself.

A block is [number before, number after, seconds, 0, samples]: the records of a task's runs have the first four as well.
The numbers are those of steps; where the output tells speeds, they are those of the prints.
"""

from __future__ import annotations

import math
import re
import resource
import sys
import threading
from collections import deque
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from relay.base.clock import steady
from relay.base.ending import QUOTED
from relay.base.files import write_json_over
from relay.chain.telling import least_seconds
from relay.run_folder.attempts import record
from relay.run_folder.sound_checkpoints import REACHED
from relay.script.steps import Steps
from relay.spec.script import SEPARATOR, Counted, Script, compiled

KEPT_LINES = 200
# What torchrun prints of a process that failed, after that process's own words: forty lines that hide them.
EPILOGUE = re.compile(r"torch/distributed/elastic/\S+\] (Sending process|failed \(exitcode)")
LONGEST_SHOWN = 200
MOST_VALUES = 100  # losses of one record
SHOWN_LINES = 8
SPEED, STEP, ACCURACY = "samples_per_second", "step", "accuracy"
CENT = 100.0  # an accuracy above 1, or before a per-cent sign, is in per cent
THOUSANDS = re.compile(rf"[-+]?\d{{1,3}}({SEPARATOR}\d{{3}})+(\.\d*)?")
# 12.3k, and 1.2kit/s: of other words, such as in 3 Moves/s, the letter is no factor.
IN_THOUSANDS = re.compile(r"([kKM])(?![A-Za-z])|\s?([kKM])(?=(?:it|im|ex|sam|tok|seq)[a-z]*\s?(?:/|per\b))")
LENGTH = re.compile(r"\s?/\s?(\d+)(?![\d.,_kKM])")  # of an epoch: 3/100


class Point(NamedTuple):
    """When a step, or a print, had come, its number, and the samples so far where they are told."""

    at: float
    number: int
    samples: float | None = None


class Observed:
    """Gathers what a command tells. `line` is called by the thread that reads its output, all else by the main one.

    `step` is the last one of which is known, and `saved` the newest that can be gone on from; 0 before the first.
    `heard` is when it printed last, and `first_at` when the first step was told; None where the output tells speeds,
    for then nobody knows.
    """

    def __init__(self, script: Script, batch: int, warmup_steps: int, report: Path) -> None:
        self._read_by = script.read
        self._patterns = {name: compiled(pattern) for name, pattern in script.read.items()}
        self._counts: Counted = script.counts
        self._batch, self._warmup_steps = batch, warmup_steps
        self._report, self._read, self._rest = report, 0, ""  # how far it was read, and the part of a line after that
        self._lock = threading.Lock()
        self._values: dict[str, list[float]] = {}
        self._speeds: list[float] = []
        self._blocks: list[list[float]] = []
        self._blocked = False  # whether there was any block
        self._steps, self._first, self._last = Steps(), 0, Point(0.0, 0)
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.began = self.heard = steady()
        self.first_at: float | None = None
        self.step = self.saved = 0
        self.matched: set[str] = set()
        self._unread: dict[str, str] = {}  # by the pattern's name: what was read first where a number should be

    def line(self, text: str, now: float) -> None:
        """Take in a line of the output."""
        with self._lock:
            self.lines.append(text)
            self.heard = now
            for name, pattern in self._patterns.items():
                if match := pattern.search(text):
                    self._match(name, match[1] or "", text[match.end(1) :], text, now)

    def _match(self, name: str, digits: str, after: str, line: str, now: float) -> None:
        try:
            value = float(re.sub(SEPARATOR, "", digits) if THOUSANDS.fullmatch(digits) else digits)
            if unit := IN_THOUSANDS.match(after):
                value = round(value * (1e6 if "M" in unit[0] else 1e3), 6)  # 2.03k is 2030
            if name == STEP and value % 1:
                raise ValueError
            if name == ACCURACY:
                value /= CENT if value > 1 or after.lstrip().startswith("%") else 1.0
            if name in (SPEED, STEP, ACCURACY) and not 0 <= value <= (1 if name == ACCURACY else sys.float_info.max):
                raise ValueError
        except ValueError:
            what = "whole number" if name == STEP else "number"
            wrong = f"read.{name}: '{digits}' is no {what}, in the line '{line[:LONGEST_SHOWN]}'"
            self._unread.setdefault(name, wrong)
            return
        self.matched.add(name)
        if name == SPEED:
            self._speed(value, now)
        elif name == STEP and SPEED not in self._patterns:
            length = LENGTH.match(after)
            self._step_ended(Point(now, self._steps.total_after(int(value), int(length[1]) if length else 0)))
        elif name != STEP:
            self._values.setdefault(name, []).append(value)

    def _speed(self, samples_per_second: float, now: float) -> None:
        """The speed of the time since the last one was told."""
        self._speeds.append(samples_per_second)
        seconds = now - self._last.at
        if len(self._speeds) == 1:
            self._last = Point(now, 1)
        elif seconds > 0:  # else both came in one piece of output
            self._end_block(Point(now, self._last.number + 1), samples_per_second * seconds)

    def _step_ended(self, point: Point) -> None:
        """A step has ended by now."""
        self.step = max(self.step, point.number)
        if self.first_at is None:
            self.first_at, self._first, self._last = point.at, point.number, point
            return
        least = least_seconds(point.at - self.began)  # shorter blocks are put together
        if self._last.number < self._first + self._warmup_steps <= point.number:
            least = 0.0  # here the steps begin that are timed
        if point.number <= self._last.number or not point.at - self._last.at >= least:
            return
        samples: float = (point.number - self._last.number) * (self._batch if self._counts == "samples" else 1)
        if self._last.samples is not None and point.samples is not None:
            # A launcher that has started the script again begins at 0.
            samples = point.samples - (self._last.samples if point.samples >= self._last.samples else 0.0)
        self._end_block(point, samples)

    def _end_block(self, point: Point, samples: float) -> None:
        seconds = point.at - self._last.at
        if seconds > 0:
            self._blocks.append([self._last.number, point.number, round(seconds, 6), 0.0, samples])
            self._blocked = True
            self._last = point

    def _read_report(self) -> None:
        """Take in what the command has reported since the last time."""
        try:
            with self._report.open(encoding="utf-8", errors="replace") as stream:
                stream.seek(self._read)
                *lines, self._rest = (self._rest + stream.read()).split("\n")
                self._read = stream.tell()
        except OSError:
            return
        for line in lines:
            try:
                first, number, *samples = line.split()
                if first in ("saved", "resumed"):
                    self.saved = max(self.saved, int(number))
                    continue
                point = Point(float(first), int(number), None if samples[0] == "-" else float(samples[0]))
            except (ValueError, IndexError):  # torn by a kill
                continue
            self.matched.add("report")
            self.step = max(self.step, point.number)
            if not {SPEED, STEP} & {*self._patterns}:
                self._step_ended(point)

    def take(self) -> dict[str, Any]:
        """What has come since the last time, as a line of the records."""
        with self._lock:
            self._read_report()
            values = {name: _thinned(read_values) for name, read_values in self._values.items()}
            taken = {"blocks": self._blocks, "read": values, "step": self.step}
            self._blocks, self._values = [], {}
            return taken

    def whole(self, seconds: float) -> list[list[float]]:
        """The one block of a command of which nothing is known but how long it took, or a speed at its end."""
        if self._counts == "runs":
            return [[0, 1, seconds, 0.0, 1]]
        if self._speeds and not self._blocked:
            return [[0, 1, seconds, 0.0, fmean(self._speeds) * seconds]]
        return []

    def missing(self) -> str:
        """What the command should have told by its end and has not; '' where it has told all."""
        for name in self._patterns:
            if name not in self.matched:
                nothing = f"read.{name}: the pattern '{self._read_by[name]}' matches nothing in the output"
                return self._unread.get(name, nothing)
        counted_by = self._patterns.keys() & {SPEED, STEP}
        if self._counts != "runs" and not counted_by and not self.matched and not self.saved:
            return "it ended with status 0 without a single step: none was reported by relay.chain"
        return ""

    def doubt(self) -> str:
        """Why the speed may be another one than the training's; '' where nothing speaks for that."""
        if self._unread:
            return next(iter(self._unread.values()))
        if self._steps.bars:
            counts = "read.step counts up to {} and {}".format(*self._steps.bars)
            return f"{counts}: if one is a validation's, let the pattern name the training's bar"
        if self._steps.stuck:
            return f"read.step did not rise any more after step {self.step}: see how the output prints the next ones"
        return ""

    def last_lines(self) -> list[str]:
        """The last lines of the output, without those that torchrun adds."""
        with self._lock:
            lines = [line for line in self.lines if line.strip()]
        epilogue = next((place for place, line in enumerate(lines) if EPILOGUE.search(line)), None)
        return lines[:epilogue] or lines

    def shown(self) -> str:
        """The last few lines of the output, for an error."""
        last = self.last_lines()[-SHOWN_LINES:]
        return "".join(f"{QUOTED}{line}" for line in last) or "; it printed nothing"


class Records:
    """Writes what is observed as the records of an attempt."""

    def __init__(self, work: Path, attempt: int, observed: Observed, *, on_gpus: bool) -> None:
        self.work, self.attempt, self.observed, self.on_gpus = work, attempt, observed, on_gpus
        self._saved = 0

    def write(self) -> None:
        """Write what has come since the last time."""
        record(self.work, self.attempt, **self.observed.take())
        if self.observed.saved > self._saved:
            self._saved = self.observed.saved
            write_json_over(self.work / REACHED, {"step": self._saved})

    def end(self, seconds: float, *, stopped: str = "", step: int | None = None, asks_again: bool = False) -> None:
        """Note how the command has ended, and after how long: done, or `stopped` after a step.

        `asks_again`: whether it asks to be started again.
        """
        self.write()
        # The most main memory that a process of the command has used.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        record(
            self.work,
            self.attempt,
            blocks=[] if stopped else self.observed.whole(seconds),
            end=self.observed.step if step is None else step,
            done=not stopped,
            stopped=stopped or None,
            asks_again=asks_again,
            seconds=seconds,
            doubt=self.observed.doubt(),
            first_at=self.observed.first_at,
            peak_memory_bytes=None if self.on_gpus else peak,
            peak_main_memory_bytes=peak,
            counted={},
        )


def _thinned(values: list[float]) -> list[float]:
    """At most so many of the values, the last one and any that is not finite among them."""
    stride = -(-len(values) // MOST_VALUES)
    wrong = next((value for value in values if not math.isfinite(value)), None)
    return values[::-1][::stride][::-1] + ([] if wrong is None else [wrong])
