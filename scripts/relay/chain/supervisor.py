"""Child processes: which there are, and how they are started, told, waited for and ended together.

Whatever starts processes and waits for them does it by `Supervisor`: `relay-chain`, the launchers of a run, and what
runs a user's command. Each says only which commands, with which environment, and where it differs in whom it tells.
What the kernel tells of processes is in /proc. Elsewhere than on Linux, none is known.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

from .signals import EARLY, SIGNALS
from .telling import STOPPED, TORCHRUN

PATIENCE_SECONDS = 600.0  # for processes that save a large model after a signal, or when another one has failed
LOOK_SECONDS = 0.5  # between two looks at the processes; that one of them ends is seen at once
ENDING_SECONDS = 0.2  # the same once they were told to end, as others may come who have to be told
BLIND_SECONDS = 0.05  # the same where the kernel does not tell their ends (Linux before 5.3)
# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def end_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """Have this process sent a signal when its parent dies, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)


def follow_torchrun() -> None:
    """Tie a rank to the torchrun that has started it, also before the training watches for signals.

    Without the launcher's store, it would wait minutes for ranks that never come. One whose launcher is gone already
    ends here: its parent is the system's first process, which in a container may be torchrun itself.
    """
    if TORCHRUN in os.environ and multiprocessing.parent_process() is None:  # no data worker
        end_with_parent()
        if sys.platform == "linux" and os.getppid() == 1 and not program(1).startswith("python"):
            os._exit(STOPPED)


def shield() -> None:
    """In a launcher that is to be started: no SIGUSR1 or 2 ends it, and it is told when this process dies.

    Slurm may send one to all of a job's processes. It would end a torchrun at once, before its ranks have saved.
    """
    for number in EARLY:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


def adopt_orphans() -> None:
    """Become the parent of whatever this process's descendants leave behind, so that it can be ended. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Process(NamedTuple):
    """A process that was started. `status()` is None while it runs, and negative for one that a signal has ended."""

    pid: int
    status: Callable[[], int | None]


class Supervisor:
    """Processes that begin and end together.

    Within `with`, SIGNALS are noted in `received`, also before there is a process. The first one is passed on to each
    process once, as SIGTERM, which launchers and scripts know: on a second one, torchrun would not wait any longer for
    processes that save. Who still runs `patience_seconds` after that, or after a failure, is killed.
    `failed` has the place in `processes` and the status of the first that was seen to have failed.
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self.processes: list[Process] = []
        self.received: list[int] = []
        self.failed: tuple[int, int] | None = None
        self.signalled: set[int] = set()
        self._deadline = math.inf

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {number: signal.signal(number, self.hear) for number in SIGNALS}
        # Where a parent ignores it, the kernel keeps no status of a process that has ended.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # a library in C has set it
                signal.signal(number, handler)

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        begin: Callable[[], None] = end_with_parent,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a process, with `options` of Popen. `begin` is called in it first: it is told when this one dies.

        Raises OSError.
        """
        # No thread of this process holds a lock that the few calls before `exec` need.
        process = subprocess.Popen(words, env=environment, preexec_fn=begin, **options)  # noqa: PLW1509
        self.processes.append(Process(process.pid, process.poll))
        return process

    def wait(self) -> int:
        """Wait until all have ended, and end all once one has failed. Returns the status of that one; 0 if none has."""
        while left := self.left():
            self._note_failure()
            if self.must_end():
                self._end(left)
            self.look()
            wait_for_an_end(left, LOOK_SECONDS if self._deadline == math.inf else ENDING_SECONDS)
        self._note_failure()
        return self.failed[1] if self.failed else 0

    def hear(self, number: int, _: FrameType | None) -> None:
        """Note a signal. The first is passed on at once: `look` may take its time."""
        self.received.append(number)
        if len(self.received) == 1:
            self._tell()

    def left(self) -> list[int]:
        """The processes that are waited for."""
        return [process.pid for process in self.processes if process.status() is None]

    def whom(self) -> list[int]:
        """The processes that are told to end. It is asked again at each look, as some may come later."""
        return self.left()

    def look(self) -> None:
        """Whatever else is to be done at each look."""

    def must_end(self) -> bool:
        """Whether all are to end."""
        return bool(self.received or self.failed)

    def patience(self) -> float:
        """The seconds for which those that were told to end are waited for."""
        return self._patience_seconds

    def kill(self, left: Sequence[int]) -> None:
        """Kill processes with all that they have started: they were told to end long ago."""
        for pid in [each for parent in left for each in (*descendants(parent), parent)]:
            send(pid, signal.SIGKILL)

    def _note_failure(self) -> None:
        ended = ((place, process.status()) for place, process in enumerate(self.processes))
        self.failed = self.failed or next(((place, status) for place, status in ended if status), None)

    def _end(self, left: Sequence[int]) -> None:
        self._tell()
        if self._deadline == math.inf:
            self._deadline = time.monotonic() + self.patience()
        if time.monotonic() > self._deadline:
            self.kill(left)

    def _tell(self) -> None:
        for pid in self.whom():
            if pid not in self.signalled:
                self.signalled.add(pid)
                send(pid, signal.SIGTERM)


def wait_for_an_end(pids: Sequence[int], seconds: float) -> None:
    """Wait so many seconds, or until one of these processes ends."""
    ends, poll = list[int](), select.poll()
    try:
        ends += map(os.pidfd_open, pids)
        for each in ends:
            poll.register(each, select.POLLIN)
        poll.poll(seconds * 1000)
    except (OSError, AttributeError):  # also where one has ended meanwhile
        time.sleep(min(seconds, BLIND_SECONDS))
    finally:
        for each in ends:
            os.close(each)


def send(pid: int, number: int) -> None:
    """Send a signal to a process, or to a group by its negative number; to none that is gone, or another user's."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def program(pid: int) -> str:
    """The name of the program that a process runs; '' for another user's process, and where there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def hears(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal; False where the system does not tell."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().split(b"\n"):  # its name may be anything
            if line.startswith(b"SigCgt:"):
                return bool(int(line[7:], 16) >> number - 1 & 1)
    return False


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that still run."""
    return [each for each, parent in parents().items() if parent == pid]


def descendants(pid: int, parent_of: Mapping[int, int] | None = None) -> list[int]:
    """The same, with those that they have started. `parent_of` is what `parents` has told, where that is at hand."""
    parent_of, tree = parent_of or parents(), [pid]
    for above in tree:  # it grows meanwhile
        tree += [each for each, parent in parent_of.items() if parent == above and each not in tree]
    return tree[1:]


def parents() -> dict[int, int]:
    """The parent of each process that runs."""
    numbers = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return {pid: int(fields[1]) for pid in numbers if (fields := stat_fields(pid))}


def started() -> float | None:
    """When this process was started, in seconds since 1970: importing torch is part of its time. None: not known."""
    with suppress(OSError):
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        if fields := stat_fields("self"):
            return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return None


def stat_fields(pid: int | str) -> list[str] | None:
    """What the kernel tells of a process in /proc/PID/stat, from the third field on, which is its state.

    None where it is over, and of one that is dead and was not waited for.
    https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    with suppress(OSError):
        # The program's name, which comes before, may have blanks and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields
    return None
