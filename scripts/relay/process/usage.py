"""CPU time and memory of a node's processes, data-loader workers included, and the CPU time of all its programs."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

BUSY = ("nice", "irq", "softirq", "steal")  # beside `user` and `system`; guests' time is part of `user`


class Usage:
    """The CPU time and the memory of some processes and, where `workers` are expected, of their children.

    To find a process's children, all processes of the node are looked at. So that is done for workers alone, and no
    more once each process has as many as it declares.
    """

    def __init__(self, processes: Sequence[int], workers: int = 0) -> None:
        self._roots = [found for pid in processes if (found := _process(pid))]
        self._workers = {root.pid: workers for root in self._roots}  # still to be found
        self._held = {root.pid: root for root in self._roots}
        self._spent: dict[int, float] = {}  # by process; of one that has ended, what it had spent

    def look(self) -> tuple[float, int]:
        """The CPU seconds that all have spent since they began, and the sum of their resident memory in bytes.

        Pages that processes share are counted for each of them.
        """
        self._find_workers()
        resident = 0
        for pid, process in list(self._held.items()):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:
                del self._held[pid]
                continue
            self._spent[pid] = times.user + times.system
            resident += memory.rss
        return sum(self._spent.values()), resident

    @staticmethod
    def of_node() -> float:
        """The CPU seconds that all programs on this node have spent since it started, the run's processes included.

        In a virtual machine these are also the seconds that the other machines took from it.
        """
        times = psutil.cpu_times()
        return float(times.user + times.system + sum(getattr(times, name, 0.0) for name in BUSY))

    def _find_workers(self) -> None:
        for root in self._roots:
            if self._workers[root.pid] <= 0:
                continue
            try:
                for child in root.children(recursive=True):
                    if child.pid not in self._spent and child.pid not in self._held:
                        self._held[child.pid] = child
                        self._workers[root.pid] -= 1
            except psutil.Error:
                self._workers[root.pid] = 0


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None
