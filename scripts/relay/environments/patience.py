"""Lines that say that something long still goes on: plain ones, also where nobody looks at a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from relay.base.clock import duration

TELL_SECONDS = 60.0


@contextmanager
def told(what: str) -> Iterator[None]:
    """While this lasts, a line a minute says how long it has lasted."""
    started, over = time.monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(TELL_SECONDS):
            print(f"  {what}: {duration(time.monotonic() - started)} so far", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
