"""What every entry point does around its work."""

import io
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay.base import ending, lifeline
from relay.base.ending import Ending
from relay.base.errors import Busy, Unavailable, UserError

# With it, `python -m` does not import from the working directory, before the libraries and the frozen code.
SAFE_PATH = "PYTHONSAFEPATH"
ROOT = Path(__file__).resolve().parents[3]  # this checkout, or the copy of one that a call's jobs have
MAIN = "scripts/main.py"  # below it: the command line `relay`


def words(python: str, root: Path, *command: str) -> list[str]:
    """How a command of a checkout is started. It imports from the folder of its script, as Snakemake must not."""
    return ["env", "-u", SAFE_PATH, python, str(root / MAIN), *command]


def typed(*command: str) -> str:
    """A command as the user can give it: by its name where the shell finds `relay`, else by its path."""
    return " ".join(["relay" if shutil.which("relay") else str(Path(sys.executable).with_name("relay")), *command])


def run(main: Callable[[], int]) -> None:
    """Exit with `main`'s status; a user's mistake is one line on stderr and status 1.

    A job of the workflow also follows its driver, and tells beside its log why it failed.
    """
    if not lifeline.follow_driver():
        sys.exit(ending.INTERRUPTED)
    ending.begin()
    print_anywhere()
    sys.exit(_status(main))


def not_allowed(error: Exception) -> str:
    """A line of a file or folder that this user may not read or change, as another user's results; '' of other errors.

    In a job it is the program's own error, whose traceback helps.
    """
    if not (isinstance(error, PermissionError) and error.filename):
        return ""
    remedy = "ask its owner, or work in a folder of your own (snakemake --directory FOLDER)"
    return f"{error.filename}: {error.strerror}; {remedy}"


def print_anywhere() -> None:
    """Let a terminal or a log without Unicode show question marks. Without this, printing ends with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _status(main: Callable[[], int]) -> int:
    try:
        return main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = ending.INTERRUPTED if isinstance(error, Busy | Unavailable) else ending.FAULT
        ending.record(Ending(status, str(error)))
        return status
    except KeyboardInterrupt:  # whoever pressed Ctrl-C knows
        return 128 + signal.SIGINT
    except Exception as error:
        if remedy := ending.remedy_of(error) if isinstance(error, OSError) else "":
            return ending.fault(f"error: {error}", remedy)
        if ending.LOG not in os.environ:
            if line := not_allowed(error):
                sys.exit(f"error: {line}")
            raise
        remedy = ending.remedy_of(error) or "the log has the traceback"
        ending.record(Ending(ending.FAULT, f"{type(error).__name__}: {error}", remedy))
        with suppress(OSError):  # the log may be on the disk that is full
            traceback.print_exc()
        return ending.FAULT
