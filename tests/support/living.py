"""Processes that a test finds, which may end at any moment; and waiting for what they do."""

import subprocess
import threading
import time
from collections.abc import Callable

import psutil

LONGEST_SECONDS = 240.0  # of what takes seconds: on a machine that others use, too, only what hangs takes so long


def words(process: psutil.Process) -> list[str]:
    """The words of its command line; none of a process that has ended, also where nobody has waited for it yet."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


def children(pid: int) -> list[psutil.Process]:
    """All processes that a process has started, and those that they have; none where it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def until(holds: Callable[[], object], what: str, seconds: float = LONGEST_SECONDS) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not seen within {seconds} s: {what}"
        time.sleep(0.05)


def read_until(process: subprocess.Popen[str], *beginnings: str) -> str:
    """What a process prints, up to a line that begins so; all of it where none comes."""
    said = []
    for line in process.stdout or ():
        said.append(line)
        if line.startswith(beginnings):
            break
    return "".join(said)


def when(holds: Callable[[], object], do: Callable[[], object]) -> None:
    """Do something in another thread once something holds."""
    threading.Thread(target=lambda: (until(holds, "something holds"), do()), daemon=True).start()


def well(ended: tuple[int, str]) -> str:
    """What was printed by what has ended with this status: it has to be 0."""
    status, printed = ended
    assert status == 0, printed
    return printed
