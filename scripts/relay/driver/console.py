"""rich's console for the driver's terminal: lines stay whole, and nobody writes into what is being drawn."""

import os
import threading
from typing import Any, Self, TextIO

from rich.console import Console


def console(stream: TextIO, *, colourless: bool) -> Console:
    """The console of a stream; `colourless`: without colours on a terminal, too."""
    return _OneAtATime(
        file=stream,
        force_terminal=stream.isatty(),
        force_interactive=stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"),
        no_color=colourless,
        soft_wrap=True,  # lines are left whole: who copies a path gets all of it
        markup=False,  # names from a config may have brackets
        emoji=False,
        highlight=False,
    )


class _OneAtATime(Console):
    """rich measures what it draws, and writes it later: whoever writes meanwhile would be drawn over."""

    def __init__(self, **options: Any) -> None:
        self._writing = threading.RLock()
        super().__init__(**options)

    def __enter__(self) -> Self:
        self._writing.acquire()
        super().__enter__()
        return self

    def __exit__(self, *given: Any) -> None:
        try:
            super().__exit__(*given)
        finally:
            self._writing.release()
