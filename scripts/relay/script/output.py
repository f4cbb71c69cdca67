"""Reads a command's output: each line is told on, and written to the log, which stays bounded."""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, TextIO

from relay.base.clock import steady

MOST_BYTES = 10 * 2**20  # of the log; of what comes after them, only the end is kept
END_LINES = 200
LONGEST_LINE = 64 * 2**10
PIECE = 64 * 2**10
BACK = re.compile(rb"\x08+|\x1b\[\d*G")  # to the beginning of the line, as \r
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours, and where the cursor goes


class Output(threading.Thread):
    """The thread that reads a pipe to its end. `line` is called with each line and the time at which it came."""

    def __init__(self, pipe: BinaryIO, line: Callable[[str, float], None], log: TextIO | None = None) -> None:
        super().__init__(name="output", daemon=True)
        self._pipe, self._line, self._log = pipe, line, log or sys.stdout
        self._written = self._left_out = 0
        self._end: deque[str] = deque(maxlen=END_LINES)

    def run(self) -> None:
        try:
            self._read()
        finally:  # whatever has gone wrong here: a full pipe would stop the command
            while self._pipe.read1(PIECE):  # type: ignore[attr-defined]
                pass

    def _read(self) -> None:
        rest, began = b"", 0.0
        while piece := self._pipe.read1(PIECE):  # type: ignore[attr-defined]  # a buffered reader
            now = steady()
            # A progress bar goes back to the beginning of its line, and ends it only with the next one.
            text = rest + piece
            text = BACK.sub(b"\r", text) if b"\x08" in text or b"\x1b" in text else text
            *lines, last = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self._take(line, began if rest else now)
                rest = b""
            began, rest = (began if rest else now), last
            if len(rest) > LONGEST_LINE:
                self._take(rest, began)
                rest = b""
        if rest:
            self._take(rest, began)
        self._finish()

    def _take(self, line: bytes, now: float) -> None:
        text = line[:LONGEST_LINE].decode(errors="replace")
        text = STYLE.sub("", text) if "\x1b" in text else text
        self._line(text, now)
        if self._written < MOST_BYTES:
            self._written += len(line) + 1
            self._write(text)
        else:
            self._left_out += len(line) + 1
            self._end.append(text)

    def _finish(self) -> None:
        if self._left_out:
            remark = f"{self._left_out / 2**20:.1f} MiB of output are left out here; its last lines are:"
            for text in (f"[{remark}]", *self._end):
                self._write(text)

    def _write(self, text: str) -> None:
        try:
            self._log.write(text + "\n")
            self._log.flush()
        except (OSError, ValueError):  # a full disk, or a log without Unicode: the command goes on as long as it can
            pass
