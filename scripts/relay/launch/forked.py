"""Ranks as forks of their launcher, which has imported what they need: torch is imported once for all of them.

They are processes as torchrun starts them, each with a session, an environment and an end of its own. They are forked
before torchrun opens its sockets and starts its threads, and wait for the environment that torchrun gives its ranks.

A process has to be started anew where it must load its libraries itself: OpenMP reads only then to which CPUs it binds
its threads (`may_fork`), and the command line leaves out GPUs and compiled networks, for which this was not tried.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from relay.base.lifeline import LAUNCHER, end_with_parent
from relay.launch import worker
from relay.launch.imports import imported
from relay.process.cpus import BINDING, VEILED
from relay.process.interruption import SIGNALS

LOOK_SECONDS = 0.01  # between two looks for a process's end, where it is waited for


def may_fork(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment may be a fork of one that has OpenMP loaded without any binding."""
    return hasattr(os, "fork") and not any(VEILED * v + name in environment for name in BINDING for v in (0, 1))


def preload(role: str) -> None:
    """Import what a role needs. A failure is left to the forks: they fail in the same way, where it is recorded."""
    with suppress(Exception):
        imported(role)


class Fork:
    """A child process by its id, with those parts of `subprocess.Popen` that torchrun uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while the process lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(LOOK_SECONDS)
        return status


def forked(act: Callable[[], None]) -> int:
    """The id of a child process that does `act`, and then ends as a Python program does."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        end_with_parent()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        if os.getppid() == parent:  # it may have died before
            act()
            status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(status)


def _leave(status: int) -> NoReturn:
    with suppress(OSError, ValueError):  # a closed standard output
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def become(environment: Mapping[str, str], words: Sequence[str]) -> None:
    """Make this process what a new one with that environment and command line (`python -m MODULE …`) would be."""
    os.environ.clear()
    os.environ.update(environment)
    os.environ[LAUNCHER] = str(os.getppid())  # with which `forked` has tied it
    sys.argv = [*words[words.index("-m") + 1 :]]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a line is not lost where a process is killed
    _show(words)


def _show(words: Sequence[str]) -> None:
    """Let `ps` show this command line: the place of the old one is written over, as far as it is long enough."""
    with suppress(OSError, ValueError, IndexError):
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        start, end = int(after_name[45]), int(after_name[46])  # arg_start and arg_end of proc(5)
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


class WaitingRanks:
    """Forked processes that wait to become a launcher's ranks; `program` are the arguments of `relay.launch.worker`."""

    def __init__(self, count: int, program: Sequence[str]) -> None:
        self.words = (sys.executable, "-u", "-m", "relay.launch.worker", *program)
        self._lines: dict[int, tuple[Fork, socket.socket]] = {}
        for local_rank in range(count):
            mine, theirs = socket.socketpair()
            pid = forked(lambda mine=mine, theirs=theirs: self._wait(mine, theirs))  # type: ignore[misc]
            theirs.close()
            self._lines[local_rank] = Fork(pid), mine

    def _wait(self, others: socket.socket, line: socket.socket) -> None:
        """In the fork: wait for the environment, then do a rank's work. Without one, the launcher has no need of it."""
        os.setsid()  # as torchrun starts its ranks: it signals their process groups
        for _, end in self._lines.values():
            end.close()
        others.close()
        with line, line.makefile("rb") as stream:
            line.sendall(b"\n")
            text = stream.read()
        if text:
            become(json.loads(text), self.words)
            worker.work(list(self.words[4:]))

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> Fork | None:
        """The rank that does the work of that command line, with that environment; None where none waits for it."""
        local_rank = int(environment.get("LOCAL_RANK", "-1"))
        if tuple(words) != self.words or not may_fork(environment) or local_rank not in self._lines:
            return None
        fork, line = self._lines.pop(local_rank)
        try:
            line.recv(1)  # it has a session of its own
            line.sendall(json.dumps(dict(environment)).encode())
        except OSError:
            return None
        finally:
            line.close()
        return fork

    @contextmanager
    def instead_of_new_ones(self) -> Iterator[None]:
        """While this lasts torchrun starts its ranks with these; and as ever where one is not what it asks for."""
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

        popen = SubprocessHandler._popen

        def take(handler: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> Any:
            redirected = handler._stdout or handler._stderr
            return (None if redirected else self.start(args, env)) or popen(handler, args, env)

        SubprocessHandler._popen = take  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            SubprocessHandler._popen = popen  # type: ignore[method-assign]
            for _, line in self._lines.values():
                line.close()
