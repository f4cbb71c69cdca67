"""What a run uses of a node while it trains: CPU time, memory, GPUs. A thread of its first process there looks at it.

A process of its own would need memory and CPU time for an interpreter, would have to be ended with the run, and would
compete for the same CPUs. A look takes less than a millisecond of Python; NVML's calls let the training go on.

The kernel tells CPU time and memory in /proc. A job's Python needs no package for that: a site's own environment often
has torch and little else. Without Linux nothing is known.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from relay.chain.supervisor import stat_fields
from relay.process.gpus import Gpus
from relay.process.system import text
from relay.run_folder.attempts import append
from relay.run_folder.samples import Look

WRITE_SECONDS = 10.0  # how often looks go to the (shared) disk: so many seconds are lost where a job is killed
END_SECONDS = 5.0  # how long the run waits at its end for a look that is under way

PROC = Path("/proc")
KNOWN = (PROC / "self" / "stat").exists()
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
# In /proc/stat: user, nice, system, irq, softirq, steal; idle and iowait are left out. Guests' time is part of user.
_BUSY = (0, 1, 2, 5, 6, 7)


class Process(NamedTuple):
    """A process, as the kernel tells it. `seconds` of CPU time are also those of children that it has waited for."""

    parent: int
    began: str
    seconds: float
    resident_bytes: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """That one; None where it is over."""
        if (fields := stat_fields(pid)) is None:
            return None
        user, system, *of_children = map(int, fields[11:15])
        return cls(int(fields[1]), fields[19], (user + system + sum(of_children)) / _TICKS, int(fields[21]) * _PAGE)


class Usage:
    """The CPU time and the memory of some processes and of all that they have started, whatever started that.

    `themselves`: whether the processes count, or only what they have started.
    """

    def __init__(self, processes: Sequence[int], *, themselves: bool = True) -> None:
        self._roots, self._themselves = {*processes}, themselves
        self._running: dict[int, Process] = {}
        self._looked_at: set[int] = set()  # all processes of the node at the last look: none of them is a new one
        self._ended_seconds = self._spent = 0.0

    def look(self) -> tuple[float, int]:
        """The CPU seconds that all have spent since they began, and the sum of their resident memory in bytes.

        Pages that processes share are counted for each of them.
        """
        self._find_new()
        before, self._running = self._running, {}
        for pid, process in before.items():
            if (now := Process.of(pid)) and now.began == process.began:
                self._running[pid] = now
        for pid in before.keys() - self._running.keys():
            above = before[pid].parent
            while above in before and above not in self._running:
                above = before[above].parent
            if above not in self._running:  # else that one has its time, once it was waited for
                self._ended_seconds += before[pid].seconds
        self._looked_at -= before.keys() - self._running.keys()  # a new process may have the number already
        running = self._running.values()
        # What has ended and was not waited for yet is in neither.
        self._spent = max(self._spent, self._ended_seconds + sum(process.seconds for process in running))
        return self._spent, sum(process.resident_bytes for process in running)

    def _find_new(self) -> None:
        """Note what has begun since the last look: to read of each process at every look would cost milliseconds."""
        there = {int(entry.name) for entry in os.scandir(PROC) if entry.name.isdecimal()}
        new = {pid: process for pid in there - self._looked_at if (process := Process.of(pid))}
        own = self._roots | self._running.keys()
        count = 0
        while count != len(own):
            count = len(own)
            own |= {pid for pid, process in new.items() if process.parent in own}
        counted = own if self._themselves else own - self._roots
        self._running |= {pid: process for pid, process in new.items() if pid in counted}
        self._looked_at = there

    @staticmethod
    def of_node() -> float | None:
        """The CPU seconds that all programs on this node have spent since it started, the run's processes included.

        In a virtual machine these are also the seconds that the other machines took from it. None: not known.
        """
        ticks = text(PROC / "stat").partition("\n")[0].split()[1:]
        return sum(int(ticks[place]) for place in _BUSY) / _TICKS if ticks else None


@contextmanager
def watched(path: Path, usage: Usage, uuids: Sequence[str], *, cpus: int, seconds: float) -> Iterator[None]:
    """While this lasts, and at its end, look every so many seconds, and write that to `path` (`run_folder.samples`).

    `uuids` are those of the GPUs, and `cpus` is how many CPUs the run declares.
    """
    gpus, over = Gpus(uuids), threading.Event()
    if gpus.unknown:
        print(f"note: how busy GPUs are is not recorded: {gpus.unknown}", flush=True)
    first = {"run": path.parents[1].name, "host": socket.gethostname(), "cpus": cpus, "seconds": seconds}
    watch = threading.Thread(target=_watch, args=(path, first, usage, gpus, over), name="monitor", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(END_SECONDS)


def _watch(path: Path, first: Mapping[str, Any], usage: Usage, gpus: Gpus, over: threading.Event) -> None:
    """Look until it is `over`, and once more. What goes wrong in it ends the looks, never the run."""
    lines: list[Mapping[str, Any]] = [first]
    looks: list[list[Any]] = []
    written = due = time.monotonic()
    ended = warned = False
    try:
        while not ended:
            ended = over.wait(max(0.0, due - time.monotonic()))
            looks.append(Look(time.time(), *usage.look(), gpus.look(), usage.of_node()).row())
            if ended or time.monotonic() - written >= WRITE_SECONDS:
                # What the thread itself has cost so far stands beside what it saw.
                lines.append({"looks": looks, "cost_seconds": round(time.thread_time(), 4)})
                looks, written = [], time.monotonic()
                if (problem := _write(path, lines)) and not warned:
                    print(f"warning: what the run uses is not recorded for now: {problem}", flush=True)
                    warned = True
            due = max(due + first["seconds"], time.monotonic())  # a look that took longer is not made up for
    except Exception as error:
        print(f"warning: what the run uses is no longer recorded: {type(error).__name__}: {error}", flush=True)
    finally:
        gpus.close()


def _write(path: Path, lines: list[Mapping[str, Any]]) -> OSError | None:
    """Write the lines, and leave those that cannot be written now, with the error."""
    try:
        path.parent.mkdir(exist_ok=True)
        while lines:
            append(path, lines[0])
            del lines[0]
    except OSError as error:
        return error
    return None
