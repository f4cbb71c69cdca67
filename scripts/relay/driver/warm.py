"""The driver's part in the warm server: it listens from the start, and starts the server.

That is when the first job asks or, where proofs are to come, with the driver's first jobs.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from relay.launch.command_lines import SAFE_PATH
from relay.launch.warm import ADDRESS
from relay.launch.warm_server import PADDING
from relay.run_folder.snapshot import freeze

ENDING_SECONDS = 10.0  # what the server's processes have to end with the driver


@contextmanager
def serving(results: Path) -> Iterator[Callable[[], None]]:
    """While this lasts the proofs of this process's jobs share a warm server; only where there are abstract sockets.

    The server runs today's code, from a snapshot in the results. Yields what starts it before a job asks.
    """
    if sys.platform != "linux":
        yield lambda: None
        return
    address = f"torch-relay-{os.getpid()}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        starter = _Starter(listener, results)
        starter.start()
        os.environ[ADDRESS] = address
        try:
            yield starter.wake
        finally:
            os.environ.pop(ADDRESS, None)
            starter.finish()


class _Starter(threading.Thread):
    """Starts the server when a job waits for one: again and again, because a server ends when it has nothing to do.

    The kernel sends the server SIGTERM when this thread ends, which is when the driver does.
    """

    def __init__(self, listener: socket.socket, results: Path) -> None:
        super().__init__(name="warm server", daemon=True)
        self.listener, self.results = listener, results
        self.woken, self.waker = socket.socketpair()
        self.server: subprocess.Popen[bytes] | None = None
        self.finished = False

    def run(self) -> None:
        try:
            while self._wanted():
                self.server = self._new_server()
                if self.finished:  # meanwhile
                    self.server.terminate()
                if self.server.wait() and not self.finished:
                    return  # it cannot be started: the jobs' processes are then started anew
        except OSError as error:
            print(f"warning: no warm server: {error}; proofs start their processes anew", file=sys.stderr, flush=True)
        finally:
            self.listener.close()

    def wake(self) -> None:
        """Start the server, if there is none, although no job asks yet."""
        if self.server is None:
            self.waker.send(b"\n")

    def _wanted(self) -> bool:
        """Wait for a job that asks, or for being woken; False at the driver's end."""
        ready, _, _ = select.select([self.listener, self.woken], [], [])
        return self.woken not in ready or self.woken.recv(1) != b""

    def _new_server(self) -> subprocess.Popen[bytes]:
        code = freeze(None, self.results / "code")
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # no threads that a fork would not have
        log = self.results / "logs" / "warm-server.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = ["-m", "relay.launch.warm_server", str(os.getpid()), str(self.listener.fileno()), "." * PADDING]
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *words],
                env={**os.environ, **SAFE_PATH, **one, "PYTHONPATH": str(code.resolve())},
                pass_fds=[self.listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def finish(self) -> None:
        """End the server, and wait for its end."""
        self.finished = True
        self.waker.close()
        if self.server and self.server.poll() is None:
            self.server.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.server.wait(ENDING_SECONDS)
            if self.server.poll() is None:
                self.server.kill()
        self.join(ENDING_SECONDS)
