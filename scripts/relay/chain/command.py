"""The command `relay-chain`: runs a script so that its status 75 survives its launcher, and chains batch jobs."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from types import FrameType

from . import sbatch
from .signals import EARLY, MOST_SECONDS, SIGNALS, ordered
from .slurm import END_TIME, end_time, seconds_of
from .supervisor import Supervisor, adopt_orphans, children, end_with_parent, hears, parents, shield
from .telling import (
    ACCEPT,
    HEARS,
    KILLED,
    NOTE,
    STOPPED,
    STOPS,
    TRAINS,
    ChainError,
    announce_early,
    has_gained,
    listen_for_steps,
    marks,
    read_stop,
    say,
    tell_in_one_line,
)

USAGE = """\
relay-chain [--time LIMIT] [--accept] COMMAND …    run it; status 75 where it has stopped, and a next job would go on
relay-chain sbatch [--jobs N] job.sh               submit job.sh, which calls relay-chain, job after job (N: 100)
LIMIT: minutes, or as sbatch takes it; --accept: go on also where the loader has other batches than before
"""

Meanwhile = Callable[[bool | None], None]
MEANWHILE_SECONDS = 60.0
# torchrun gives its processes 30 seconds to end, which would cut off the save of a large model. They end by themselves.
SHUTDOWN = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "86400")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` without the program); returns the exit status."""
    tell_in_one_line()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if words[0] == "sbatch":
        return sbatch.main(words[1:])
    environment, given = dict(os.environ), _given(words)
    if given.accept:
        environment[ACCEPT] = "1"
    if given.time:
        environment[END_TIME] = str(time.time() + given.time)
    following = sbatch.follow()
    if following and _name(os.getppid()) != "slurmstepd":
        end_with_parent()  # `--signal=B:` ends the job's shell, and the job with it
    environment.pop(sbatch.CHAIN, None)
    try:
        with Command(given.command, environment, following.meanwhile if following else None) as command:
            status = command.run()
            if following:
                following.end(status, gained=command.gained)
            return status
    except ChainError:  # the command could not be started, and the next job's could not either
        if following:
            following.end(1, gained=None)
        raise


def _given(words: list[str]) -> argparse.Namespace:
    """The options, and the command after them. Raises ChainError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--time", type=seconds_of)
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    with suppress(argparse.ArgumentError):  # `--time` at the end
        given, strange = parser.parse_known_args(words)
        given.command = given.command[given.command[:1] == ["--"] :]
        if given.command and not strange:
            return given
    raise ChainError(f"{' '.join(words)}: not allowed; allowed: [--time LIMIT] [--accept] COMMAND …")


class Command(Supervisor):
    """A command, in a process group of its own, so that Ctrl-C comes to it once. `meanwhile` is called each minute with
    what has been `gained` (`has_gained`).

    Without a handler for SIGTERM, those below it get it that have one: a shell would die at once, and leave its script
    alone. torchrun's ranks get it in its place, also where torchrun was killed: those that have not met yet would wait
    for it. Who listens is waited for until the job's end, and a minute longer than a save may take where none is known.
    """

    def __init__(self, words: Sequence[str], environment: dict[str, str], meanwhile: Meanwhile | None = None) -> None:
        super().__init__()
        self.words, self.environment, self._meanwhile = words, environment, meanwhile
        self._called = time.monotonic()
        self.gained: bool | None = None
        try:
            self._note = Path(tempfile.mkdtemp(prefix="relay-chain-")) / "note.json"
            listen_for_steps(self._note)
        except OSError as error:  # none of the usual folders, or it was full just now
            problem = f"no folder for temporary files: {error.strerror}; make room there, or name another one in TMPDIR"
            raise ChainError(problem) from None
        environment[NOTE] = str(self._note)
        environment.pop(HEARS, None)
        if _is_torchrun(words):  # a shell script would go on after status 0
            environment[HEARS] = "1"
        environment.setdefault(*SHUTDOWN)

    def run(self) -> int:
        """Run it; its status, or 75 where the script in it has stopped, or the job had to before it began."""
        try:
            status = self._status()
            was_ordered = ordered(self.received, status) is not None
            stop, left = read_stop(self._note, status, ordered=was_ordered), marks(self._note)
            self.gained = has_gained(self._note)
        finally:
            shutil.rmtree(self._note.parent, ignore_errors=True)
        if stop:
            if status == 0 and not stop.get("quiet"):
                say(f"the script ended with status 0, and had stopped after step {stop['step']}: let SystemExit pass")
            return STOPPED
        if STOPS in left:
            say(f"the script has stopped, and could not tell more: {self._note.parent.parent} has no room")
            return STOPPED
        if status and TRAINS in left and not was_ordered:
            say("a rank was killed, as where memory is short, or has ended without a word")
            return KILLED
        return STOPPED if was_ordered and status else status

    def _status(self) -> int:
        """The command's status, as a shell tells it."""
        if _is_torchrun(self.words):
            adopt_orphans()
        try:
            self.start(self.words, self.environment, begin=shield, process_group=0)
        except OSError as error:
            raise ChainError(f"{self.words[0]}: {error.strerror}") from None
        status = self.wait()
        return 128 - status if status < 0 else status

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Note a signal, and tell the ranks where it comes before the job's end."""
        if number in EARLY:
            announce_early(self._note)
        super().hear(number, frame)

    def left(self) -> list[int]:
        """The command; then those of its group that listen, which a shell that died of the signal has left alone."""
        ended = [each.pid for each in self.processes if self.received or -(each.status() or 0) in SIGNALS]
        return super().left() or [*self._orphans(), *(each for group in ended for each in _listening(group))]

    def _orphans(self) -> list[int]:
        """The ranks of a torchrun that was killed."""
        killed = any((launcher.status() or 0) < 0 for launcher in self.processes)
        return children(os.getpid()) if killed and _is_torchrun(self.words) else []

    def whom(self) -> list[int]:
        """The launcher, which tells its own, or those that listen, or the whole group: once, after a signal."""
        if orphans := self._orphans():
            return orphans
        if self.signalled or not self.received or not self.left():
            return []
        command = self.processes[0].pid
        listeners = _listening(command)
        if command in listeners:
            listeners = (_is_torchrun(self.words) and children(command)) or [command]
        return listeners or [-command]

    def look(self) -> None:
        """Call `meanwhile` when it is time."""
        if self._meanwhile and time.monotonic() - self._called >= MEANWHILE_SECONDS:
            self._meanwhile(has_gained(self._note))
            self._called = time.monotonic()

    def patience(self) -> float:
        """The seconds until the job's end, and those of a save at least."""
        return max(MOST_SECONDS + MEANWHILE_SECONDS, (end_time(environment=self.environment) or 0.0) - time.time())

    def kill(self, left: Sequence[int]) -> None:
        """Kill the whole group, and what has left it."""
        super().kill([*left, -self.processes[0].pid])


def _is_torchrun(words: Sequence[str]) -> bool:
    """Whether the command is torchrun itself. Its ranks stop by themselves; told to end, it would print a traceback."""
    name, rest = Path(words[0]).name, list(dropwhile(lambda word: word != "-m" and word.startswith("-"), words[1:]))
    return name == "torchrun" or (name.startswith("python") and rest[:2] == ["-m", "torch.distributed.run"])


def _name(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
    return ""


def _listening(group: int) -> list[int]:
    """The processes of a group that have a handler for SIGTERM; none where the system does not tell."""
    parent_of, listeners = parents(), []
    for process in parent_of:
        with suppress(OSError):
            if os.getpgid(process) == group and hears(process, signal.SIGTERM):
                listeners.append(process)
    # What one of them has forked, such as a helper of the training's, ends with it.
    return [each for each in listeners if not (parent_of.get(each) in listeners and _is_fork(each, parent_of[each]))]


def _is_fork(process: int, parent: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes() == Path(f"/proc/{parent}/cmdline").read_bytes()
    return False
