"""Looks at what a run uses of its nodes while it trains: CPU time, memory, GPUs. One thread on each node does it.

The thread is part of the node's first process. A process of its own would need memory and CPU time for an interpreter,
would have to be ended with the run, and would compete for the same CPUs. A look takes less than a millisecond of
Python; NVML's calls let the training go on meanwhile.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relay.process import usage
from relay.process.gpus import Gpus, uuids
from relay.process.ranks import Ranks
from relay.process.usage import Usage
from relay.run_folder.attempts import line_of
from relay.run_folder.samples import Look, samples_path
from relay.spec.run import Training

WRITE_SECONDS = 10.0  # how often looks go to the (shared) disk: so many seconds are lost where a job is killed
END_SECONDS = 5.0  # how long the run waits at its end for a look that is under way


@contextmanager
def monitored(run: Training, ranks: Ranks, work: Path, attempt: int) -> Iterator[None]:
    """While this lasts, look at each node every `monitor_seconds`, and record what is seen. Collective."""
    seconds = run.length.monitor_seconds
    if seconds and not usage.KNOWN:
        if ranks.rank == 0:
            print("note: what the run uses of its node is not recorded: this system has no /proc", flush=True)
        seconds = 0.0
    told = ranks.gather((os.getpid(), uuids(ranks.devices))) if seconds else []
    if not seconds or ranks.local_rank != 0:
        yield
        return
    processes, gpus = zip(*told[ranks.rank : ranks.rank + run.shape.processes_per_node], strict=True)
    watch = Watch(
        samples_path(work, attempt, ranks.rank),
        Usage(processes, run.feeding.data_workers if run.feeding.loader == "dataloader" else 0),
        Gpus([uuid for of_process in gpus for uuid in of_process]),
        cpus=run.shape.cpus_per_node,
        seconds=seconds,
    )
    watch.begin()
    try:
        yield
    finally:
        watch.end()


class Watch:
    """The thread, and the file that it writes. What goes wrong in it ends the looks, never the run."""

    def __init__(self, path: Path, usage: Usage, gpus: Gpus, *, cpus: int, seconds: float) -> None:
        self.path, self.usage, self.gpus, self.seconds = path, usage, gpus, seconds
        self._first = {"run": path.parents[1].name, "host": socket.gethostname(), "cpus": cpus, "seconds": seconds}
        self._first |= {"gpus": gpus.names}
        if gpus.unknown:
            print(f"note: how busy GPUs are is not recorded: {gpus.unknown}", flush=True)
        self._looks: list[list[Any]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def begin(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Look for the last time, and write what is not written yet."""
        self._over.set()
        self._thread.join(END_SECONDS)

    def _watch(self) -> None:
        try:
            self.path.parent.mkdir(exist_ok=True)
            self._write(self._first)
            written, due = time.monotonic(), time.monotonic()
            over = False
            while not over:
                self._look()
                due = max(due + self.seconds, time.monotonic())  # a look that took longer is not made up for
                over = self._over.wait(max(0.0, due - time.monotonic()))
                if time.monotonic() - written >= WRITE_SECONDS:
                    self._flush()
                    written = time.monotonic()
            self._look()
            self._flush()
        except Exception as error:
            print(f"warning: what the run uses is no longer recorded: {type(error).__name__}: {error}", flush=True)
        finally:
            self.gpus.close()

    def _look(self) -> None:
        cpu_seconds, resident = self.usage.look()
        look = Look(time.time(), cpu_seconds, resident, self.gpus.look(), self.usage.of_node())
        self._looks.append(look.row())

    def _flush(self) -> None:
        # What the thread itself has cost so far stands beside what it saw.
        self._write({"looks": self._looks, "cost_seconds": round(time.thread_time(), 4)})
        self._looks = []

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(line_of(line))
