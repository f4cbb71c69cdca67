"""A proof's processes, asked of the driver's warm server: a process that has torch imported, and forks them.

Importing torch and starting torchrun costs a small gate more than its arithmetic. A driver on this machine listens on a
socket, names it in the environment of its jobs (`ADDRESS`), and starts the server (`relay.launch.warm_server`).
Without a server, or where it does not run what the job would, the job starts its own processes.

A request is a line of JSON, with the descriptors of standard input, output and error, and of a pipe's end. The server
answers with a line, `started` or `refused` with the reason, and with `ended STATUS` later; it is sent signals' numbers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from relay.launch.forked import may_fork
from relay.spec.run import Specification, Training

ADDRESS = "TORCH_RELAY_WARM_SERVER"  # in Linux's abstract namespace: no file to leave behind
GATE = "equivalence.gate"
ROLES = (GATE, "equivalence.reference", "spot_check.process")  # no training that is measured
MODULES = ("relay.launch.torchrun", "relay.launch.worker")
DESCRIPTORS = 4  # standard input, output and error, and the end of a pipe that all processes of the job hold
_CREDENTIALS = struct.Struct("3i")  # process, user, group


def may_serve(run: Specification, role: str, environment: Mapping[str, str]) -> bool:
    """Whether the processes of that role may be forks of a server: a proof on CPUs, not compiled, nothing bound."""
    forkable = isinstance(run, Training) and run.shape.device == "cpu" and not run.computation.compile
    return forkable and role in ROLES and run.shape.launcher != "spawn" and may_fork(environment)


def of_this_user(line: socket.socket) -> bool:
    """Whether the other end of a Unix socket belongs to this user."""
    _, user, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())


class Served:
    """Processes that the server started, with those parts of `subprocess.Popen` that the launcher uses."""

    def __init__(self, line: socket.socket, answers: BinaryIO, alive: BinaryIO) -> None:
        self._line, self._answers, self._alive = line, answers, alive

    def send_signal(self, number: int) -> None:
        """Send a signal to the first of the processes."""
        with suppress(OSError):  # the server is gone
            self._line.sendall(f"{int(number)}\n".encode())

    def wait(self) -> int:
        """The exit status of the first of the processes; of a killed server's, -SIGKILL once all have ended."""
        with self._line, self._answers, self._alive:
            word, _, status = _line_of(self._answers).partition(" ")
            if word == "ended":
                return int(status)
            self._alive.read()
            return -signal.SIGKILL


def start(words: Sequence[str], environment: Mapping[str, str]) -> Served | None:
    """Start a command line at the server, with this process's standard streams; None where it cannot be done."""
    address = environment.get(ADDRESS)
    if not address or not hasattr(socket, "SO_PEERCRED"):
        return None
    line = socket.socket(socket.AF_UNIX)
    mine, theirs = os.pipe()
    alive = os.fdopen(mine, "rb")
    request = {"words": list(words), "environment": dict(environment), "directory": str(Path.cwd())}
    sys.stdout.flush()
    try:
        line.connect(f"\0{address}")
        answers = line.makefile("rb")
        if of_this_user(line):
            socket.send_fds(line, [b"\n"], [0, 1, 2, theirs])
            line.sendall(json.dumps(request).encode() + b"\n")
            answer = _line_of(answers)
            if answer == "started":
                return Served(line, answers, alive)
            if answer:
                print(f"its processes are started anew: the driver's warm server has {answer}", flush=True)
    except OSError:  # the driver, or its server, is gone
        pass
    finally:
        os.close(theirs)
    line.close()
    alive.close()
    return None


def _line_of(stream: BinaryIO) -> str:
    """The next line; '' where the other end is closed."""
    try:
        return stream.readline().decode().rstrip("\n")
    except OSError:
        return ""
