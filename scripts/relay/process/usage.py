"""What a run uses of a node while it trains: CPU time, memory, GPUs. A thread of its first process there looks at it.

A process of its own would need memory and CPU time for an interpreter, would have to be ended with the run, and would
compete for the same CPUs. A look takes less than a millisecond of Python; NVML's calls let the training go on.

The kernel tells CPU time and memory in /proc. A job's Python needs no package for that: a site's own environment often
has torch and little else. Without Linux nothing is known.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relay.chain.supervisor import descendants, parents, stat_fields
from relay.process.gpus import Gpus
from relay.run_folder.attempts import append
from relay.run_folder.samples import Look

WRITE_SECONDS = 10.0  # how often looks go to the (shared) disk: so many seconds are lost where a job is killed
END_SECONDS = 5.0  # how long the run waits at its end for a look that is under way

PROC = Path("/proc")
KNOWN = (PROC / "self" / "stat").exists()
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
# In /proc/stat: user, nice, system, irq, softirq, steal; idle and iowait are left out. Guests' time is part of user.
_BUSY = (0, 1, 2, 5, 6, 7)


class Usage:
    """The CPU time and the memory of some processes and, where `workers` are expected, of their children.

    To find a process's children, all processes of the node are looked at. So that is done for workers alone, and no
    more once each process has as many as it declares.
    """

    def __init__(self, processes: Sequence[int], workers: int = 0) -> None:
        self._workers = {pid: workers for pid in processes if stat_fields(pid)}  # still to be found
        self._held = set(self._workers)
        self._spent: dict[int, float] = {}  # by process; of one that has ended, what it had spent

    def look(self) -> tuple[float, int]:
        """The CPU seconds that all have spent since they began, and the sum of their resident memory in bytes.

        Pages that processes share are counted for each of them.
        """
        self._find_workers()
        resident = 0
        for pid in sorted(self._held):
            if (fields := stat_fields(pid)) is None:
                self._held.discard(pid)
                continue
            self._spent[pid] = (int(fields[11]) + int(fields[12])) / _TICKS  # in user and in kernel mode
            resident += int(fields[21]) * _PAGE
        return sum(self._spent.values()), resident

    @staticmethod
    def of_node() -> float:
        """The CPU seconds that all programs on this node have spent since it started, the run's processes included.

        In a virtual machine these are also the seconds that the other machines took from it.
        """
        _, *ticks = (PROC / "stat").read_text(encoding="utf-8").splitlines()[0].split()
        return sum(int(ticks[place]) for place in _BUSY) / _TICKS

    def _find_workers(self) -> None:
        searched = [root for root, missing in self._workers.items() if missing > 0]
        parent_of = parents() if searched else {}
        for root in searched:
            new = {*descendants(root, parent_of)} - self._spent.keys() - self._held
            self._held |= new
            self._workers[root] -= len(new)


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
    looks: list[list[Any]] = []
    written = due = time.monotonic()
    ended = False
    try:
        path.parent.mkdir(exist_ok=True)
        append(path, first)
        while True:
            used = usage.look()
            looks.append(Look(time.time(), *used, gpus.look(), usage.of_node()).row())
            if ended or time.monotonic() - written >= WRITE_SECONDS:
                # What the thread itself has cost so far stands beside what it saw.
                append(path, {"looks": looks, "cost_seconds": round(time.thread_time(), 4)})
                looks, written = [], time.monotonic()
            if ended:
                break
            due = max(due + first["seconds"], time.monotonic())  # a look that took longer is not made up for
            ended = over.wait(max(0.0, due - time.monotonic()))
    except Exception as error:
        print(f"warning: what the run uses is no longer recorded: {type(error).__name__}: {error}", flush=True)
    finally:
        gpus.close()
