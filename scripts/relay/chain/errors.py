"""How a script ends: by a mistake told in one line, or by a planned stop with status 75."""

from __future__ import annotations

import sys
from types import TracebackType

NAME = "relay.chain"
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: the next job goes on


class ChainError(Exception):
    """A mistake that the user can mend. Uncaught, it is one line on stderr and status 1.

    `aloud` is False on the ranks that leave the telling to another one.
    """

    def __init__(self, message: str, *, aloud: bool = True) -> None:
        super().__init__(message)
        self.aloud = aloud


class Stopped(SystemExit):
    """A planned stop: the state is saved, and the process ends, with status 75 as a rule. `reason` says why."""

    def __init__(self, step: int, reason: str, status: int = STOPPED) -> None:
        super().__init__(status)
        self.step, self.reason = step, reason


def say(line: str) -> None:
    """Tell the user one line."""
    print(f"{NAME}: {line}", file=sys.stderr, flush=True)


def tell_in_one_line() -> None:
    """From now on, a `ChainError` that nobody catches is one line, without a traceback. Other errors are as before."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ChainError):
            before(kind, error, trace)
        elif error.aloud:
            say(str(error))

    if getattr(before, "__module__", None) != __name__:
        sys.excepthook = hook
