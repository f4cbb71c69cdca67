"""Lines at the bottom of a terminal that are drawn again and again, with all else printed above them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

SETTLE_SECONDS = 0.5  # what others have to print their lines after `clear`


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be drawn again there."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Region:
    """The lines that stand at the bottom of a terminal. The cursor stays below them, at the beginning of a line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._height = 0
        self._abandoned = 0  # how often somebody else has written below the lines
        self._cleared = -SETTLE_SECONDS
        self._lock = threading.Lock()

    def draw(self, lines: Sequence[str], wanted: Callable[[], bool] = lambda: True) -> None:
        """Put these lines in the place of those before, if that is `wanted` just then. Raises OSError.

        None may be wider than the terminal. Nothing is drawn shortly after `clear`: others print their lines then.
        """
        with self._lock:
            if time.monotonic() - self._cleared < SETTLE_SECONDS or not wanted():
                return
            before = self._abandoned
            text = "".join(f"{line}\x1b[K\n" for line in lines)
            self._write(f"{self._to_top()}{text}\x1b[J")
            self._height = len(lines) if self._abandoned == before else 0

    def clear(self, above: str = "") -> None:
        """Take the lines away, so that others can be printed; `above` is printed in their place. Raises OSError."""
        with self._lock:
            self._cleared = time.monotonic()
            if self._height or above:
                self._write(f"{self._to_top()}\x1b[J{above}" if self._height else above)
                self._height = 0

    def abandon(self) -> None:
        """Somebody writes below the lines: they stay as they are. Takes no lock, as a handler of signals must not."""
        self._abandoned += 1
        self._height = 0

    def _to_top(self) -> str:
        return f"\x1b[{self._height}F" if self._height else ""

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
