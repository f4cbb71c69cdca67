"""The thread that looks at what a run uses of a node, and writes it down. Needs no torch."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

from relay.process.gpus import Gpus
from relay.process.usage import Usage
from relay.run_folder.attempts import line_of
from relay.run_folder.samples import Look

WRITE_SECONDS = 10.0  # how often looks go to the (shared) disk: so many seconds are lost where a job is killed
END_SECONDS = 5.0  # how long the run waits at its end for a look that is under way


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
