"""How far a download is: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm

LINE_SECONDS = 10.0


@contextmanager
def progress(name: str, total_bytes: int, stream: TextIO | None = None) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told the bytes received so far, as often as one likes."""
    stream = stream or sys.stderr
    if stream.isatty():
        with tqdm(total=total_bytes, desc=name, unit="B", unit_scale=True, file=stream) as bar:

            def show(received_bytes: int) -> None:
                bar.update(received_bytes - bar.n)

            yield show
    else:
        yield _lines(name, total_bytes, stream)


def _lines(name: str, total_bytes: int, stream: TextIO) -> Callable[[int], None]:
    start = last = time.monotonic()

    def show(received_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS or received_bytes == total_bytes:
            last = now
            figures = f"{received_bytes / 1e6:.1f} of {total_bytes / 1e6:.1f} MB in {now - start:.0f} s"
            print(f"{name}: {figures}", file=stream, flush=True)

    return show
