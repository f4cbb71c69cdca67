"""The warm server: imports torch and what proofs need, once, and forks the processes of each job that asks.

    python -m relay.launch.warm_server DRIVER LISTENER PADDING

`relay.launch.warm` says who asks for what. DRIVER is the id of the process that has started it, LISTENER the descriptor
of its socket, and PADDING makes room for the longer command lines that its forks show. It sleeps while nobody asks,
ends with its driver, and when nobody has asked for ten minutes; the processes of a job end with the job.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from relay.base.files import sha256
from relay.base.lifeline import end_with_parent
from relay.launch import forked, warm
from relay.launch.imports import imported, importing

PADDING = 4000
# Spot checks come when the runs after the gates are over. Where these are short, waiting costs less than a new server.
IDLE_SECONDS = 600.0
REQUEST_SECONDS = 10.0  # what a job has to say what it wants
# Variables that differ from job to job, none of which acts when torch is imported; nor does one of this project's own.
OF_A_JOB = ("PYTHONPATH", "PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "TMP", "TEMP", "TEMPDIR")
OWN = "TORCH_RELAY_"
THREADS = ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")
VARYING = {*OF_A_JOB, *(f"{library}_NUM_THREADS" for library in THREADS), "VECLIB_MAXIMUM_THREADS"}


@dataclass
class Code:
    """The code that this process has imported: its folder, and the digest of each file of the package."""

    folder: Path
    digests: Mapping[str, str]

    @classmethod
    def imported(cls) -> Code:
        """That of the modules that are imported now."""
        folder = Path(__file__).resolve().parents[2]
        files = {Path(module.__file__ or "") for module in _own_modules()}
        return cls(folder, {str(file.relative_to(folder)): sha256(file) for file in files if file.is_file()})

    def is_in(self, folder: Path) -> bool:
        """Whether a snapshot has the same files; it may have more, such as a strategy of one's own."""
        try:
            return all(sha256(folder / name) == digest for name, digest in self.digests.items())
        except OSError:
            return False

    def move_to(self, folder: Path) -> None:
        """Find what is not imported yet in that snapshot."""
        packages = (module.__path__ for module in _own_modules() if isinstance(getattr(module, "__path__", None), list))
        for places in (sys.path, *packages):
            for number, place in enumerate(places):
                if Path(place).is_relative_to(self.folder):
                    places[number] = str(folder / Path(place).relative_to(self.folder))
        importlib.invalidate_caches()


def _own_modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.split(".")[0] == "relay"]


@dataclass
class Asked:
    """A job's connection, and the id of its first process once that is started."""

    line: socket.socket
    pid: int | None = None


class Server:
    """Answers one job after the other, and looks after the processes of all of them."""

    def __init__(self, listener: socket.socket, environment: Mapping[str, str]) -> None:
        self.listener, self.environment, self.code = listener, dict(environment), Code.imported()
        self.asked: list[Asked] = []
        self.selector = selectors.DefaultSelector()
        self.woken, waker = socket.socketpair()
        for end in (self.woken, waker):
            end.setblocking(False)
        self.waker = waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.ending = False
        signal.signal(signal.SIGTERM, self._end)
        self.selector.register(listener, selectors.EVENT_READ)
        self.selector.register(self.woken, selectors.EVENT_READ)

    def _end(self, *_: object) -> None:
        """Take no more jobs: those that are under way get their own signals."""
        self.ending = True

    def serve(self) -> None:
        """Until nobody has asked for a while, or a signal came and no process is left."""
        while not (self.ending and not self.asked):
            ready = self.selector.select(None if self.asked else IDLE_SECONDS)
            if not (ready or self.asked):
                return
            for key, _ in ready:
                if key.fileobj is self.woken:
                    with suppress(BlockingIOError):
                        self.woken.recv(4096)
                elif key.fileobj is self.listener:
                    if not self.ending:
                        self._accept()
                else:
                    self._signalled(key.data)
            self._reap()

    def _accept(self) -> None:
        line, _ = self.listener.accept()
        line.settimeout(REQUEST_SECONDS)
        descriptors: list[int] = []
        asked = Asked(line)
        try:
            if not warm.of_this_user(line):
                raise ValueError("another user")
            _, descriptors, _, _ = socket.recv_fds(line, 1, warm.DESCRIPTORS)
            with line.makefile("rb") as stream:
                request = json.loads(stream.readline())
            what, reason = " ".join(request["words"][1:]), self._refusal(request, descriptors)
            if reason:
                print(f"refused, because this server has {reason}: {what}", flush=True)
                line.sendall(f"{reason}\n".encode())
                line.close()
                return
            asked.pid = forked.forked(lambda: self._become(request, descriptors))
            print(f"started as process {asked.pid}: {what}", flush=True)
            self.asked.append(asked)
            self.selector.register(line, selectors.EVENT_READ, asked)
            line.sendall(b"started\n")
        except (OSError, ValueError, KeyError):  # the job is gone, or was none
            if asked.pid is None:
                line.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _refusal(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> str:
        """What this process has otherwise than the job's own processes would have; '' where it is the same."""
        words, environment = request["words"], request["environment"]
        if len(descriptors) != warm.DESCRIPTORS or words[0] != sys.executable or words[2] not in warm.MODULES:
            return "another Python"
        if not self.code.is_in(Path(environment["PYTHONPATH"].split(os.pathsep)[0])):
            return "other code"
        both = {*environment, *self.environment} - VARYING
        both = {name for name in both if not name.startswith(OWN)}
        other = sorted(name for name in both if environment.get(name) != self.environment.get(name))
        return f"another value of {', '.join(other[:3])} in its environment" if other else ""

    def _become(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """In a fork: do the work of that command line."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.selector.close()
        for end in (self.listener, self.woken, self.waker, *(asked.line for asked in self.asked)):
            end.close()
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(request["directory"])
        words, environment = request["words"], request["environment"]
        self.code.move_to(Path(environment["PYTHONPATH"].split(os.pathsep)[0]))
        forked.become(environment, words)
        module = import_module(words[2])
        if words[2] == "relay.launch.worker":
            module.work(words[3:])
        else:
            sys.exit(module.main(words[3:]))

    def _signalled(self, asked: Asked) -> None:
        """Pass on what a job sends; the end of a job is the end of its processes."""
        try:
            text = asked.line.recv(4096)
        except OSError:
            text = b""
        numbers = [int(number) for number in text.split()] if text else [signal.SIGTERM]
        if not text:
            self.selector.unregister(asked.line)
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(asked.pid or 0, number)

    def _reap(self) -> None:
        for asked in list(self.asked):
            pid, status = os.waitpid(asked.pid or 0, os.WNOHANG)
            if pid:
                self.asked.remove(asked)
                with suppress(KeyError):
                    self.selector.unregister(asked.line)
                with suppress(OSError), asked.line:
                    asked.line.sendall(f"ended {os.waitstatus_to_exitcode(status)}\n".encode())


def main(driver: int, listener: int) -> int:
    """Import what proofs need, and serve. Returns 1 where a thread runs by then, which no fork would have."""
    given = dict(os.environ)  # torch adds to it
    with suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C reaches the driver alone
    end_with_parent()
    if os.getppid() != driver:
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with importing():
        for module in ("torch.distributed.run", *warm.MODULES):
            import_module(module)
    for role in warm.ROLES:
        imported(role)
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        print("the warm server has threads after its imports: it serves nobody", file=sys.stderr)
        return 1
    Server(socket.socket(fileno=listener), given).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
