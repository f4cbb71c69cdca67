"""The command `relay-chain`: runs a script so that its status 75 survives its launcher, and chains batch jobs."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from types import FrameType

from . import note, sbatch
from .errors import STOPPED, ChainError, say, tell_in_one_line
from .launched import end_with_parent
from .signals import MOST_SECONDS, SIGNALS
from .time_limit import END_TIME, end_time, seconds_of

USAGE = """\
relay-chain [--time LIMIT] [--accept] COMMAND …    run it; status 75 where it has stopped, and a next job would go on
relay-chain sbatch [--jobs N] job.sh               submit job.sh, which calls relay-chain, job after job (N: 100)
LIMIT: minutes, or as sbatch takes it; --accept: go on also where the loader has other batches than before
"""

MEANWHILE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
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
    environment = dict(os.environ)
    while words and (option := words[0].partition("=")[0]) in ("--time", "--accept"):
        if option == "--accept":
            environment[note.ACCEPT], words = "1", words[1:]
        else:
            limit, words = _limit(words)
            environment[END_TIME] = str(time.time() + limit)
    if not words or words[0].startswith("-"):
        raise ChainError(
            f"{' '.join(words) or 'no command'}: not allowed; allowed: [--time LIMIT] [--accept] COMMAND …"
        )
    following = sbatch.follow()
    if following and _name(os.getppid()) != "slurmstepd":
        end_with_parent()  # `--signal=B:` ends the job's shell, and the job with it
    environment.pop(sbatch.CHAIN, None)
    status = run(words, environment, following.ask_again if following else None)
    if following:
        following.end(status)
    return status


def _limit(words: list[str]) -> tuple[float, list[str]]:
    """The seconds of `--time LIMIT` or `--time=LIMIT`, and the words after it."""
    _, equals, value = words[0].partition("=")
    rest = words[1:]
    if not equals:
        value, rest = (rest[0] if rest else ""), rest[1:]
    return seconds_of(value), rest


def run(words: Sequence[str], environment: dict[str, str], meanwhile: Callable[[], None] | None = None) -> int:
    """Run a command; its status, or 75 where the script in it has stopped, or the job had to before it began.

    `meanwhile` is called each minute.
    """
    folder = Path(tempfile.mkdtemp(prefix="relay-chain-"))
    try:
        environment[note.NOTE] = str(folder / "note.json")
        environment.pop(note.HEARS, None)
        if _is_torchrun(words):  # a shell script would go on after status 0
            environment[note.HEARS] = "1"
        environment.setdefault(*SHUTDOWN)
        status, signalled = _status(words, environment, meanwhile)
        told = note.read(folder / "note.json")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if told:
        if status == 0 and not told.get("quiet"):
            say(f"the script ended with status 0, and had stopped after step {told['step']}: let SystemExit pass")
        return STOPPED
    # Slurm signals all of a job's processes: the command may have ended before this process was told.
    ordered = signalled or status in [128 + number for number in SIGNALS]
    return STOPPED if ordered and status else status


def _status(
    words: Sequence[str], environment: dict[str, str], meanwhile: Callable[[], None] | None
) -> tuple[int, bool]:
    """A command's status, as a shell tells it, and whether a signal came meanwhile.

    The first signal is passed on, as SIGTERM, which launchers know; they take a second one as an order to end at once.
    Without a handler for it, those below it get it that have one: a shell would die at once, and leave its script
    alone. torchrun's ranks get it in its place. Who listens is waited for until the job's end, and a minute longer than
    a save may take where none is known.
    The command has a process group of its own, so that Ctrl-C comes to it once.
    """
    signalled: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on() -> None:
        if signalled and started:
            command = started.pop()
            told = _listening(command.pid)
            if command.pid in told:  # a launcher, which tells its own
                told = (_is_torchrun(words) and _children(command.pid)) or [command.pid]
            for process in told or [-command.pid]:  # the whole group
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)

    def note_signal(number: int, _: FrameType | None) -> None:
        signalled.append(number)
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            note.announce(Path(environment[note.NOTE]))
        pass_on()

    for number in SIGNALS:
        signal.signal(number, note_signal)
    try:
        # No thread is there, which could hold a lock at the fork.
        command = subprocess.Popen(words, env=environment, process_group=0, preexec_fn=_shield)  # noqa: PLW1509
    except OSError as error:
        raise ChainError(f"{words[0]}: {error.strerror}") from None
    started.append(command)
    pass_on()  # a signal that came before there was a command
    last = math.inf
    # A shell may die of the signal before this process is told, and leave a script that saves.
    while (status := _ended(command, MEANWHILE_SECONDS)) is None or (
        (signalled or -status in SIGNALS) and _listening(command.pid)
    ):
        if (signalled or status is not None) and last == math.inf:
            last = max(time.time() + MOST_SECONDS + MEANWHILE_SECONDS, end_time(told=environment) or 0)
        if time.time() > last:
            os.killpg(command.pid, signal.SIGKILL)
        elif status is None:
            meanwhile and meanwhile()
        else:
            time.sleep(_LOOK_SECONDS)
    return (128 - status if status < 0 else status), bool(signalled)


def _is_torchrun(words: Sequence[str]) -> bool:
    """Whether the command is torchrun itself. Its ranks stop by themselves; told to end, it would print a traceback."""
    name, rest = Path(words[0]).name, list(dropwhile(lambda word: word != "-m" and word.startswith("-"), words[1:]))
    return name == "torchrun" or (name.startswith("python") and rest[:2] == ["-m", "torch.distributed.run"])


def _name(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return ""


def _children(process: int) -> list[int]:
    """A process's children; none where the system does not tell (Linux does)."""
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def _listening(group: int) -> list[int]:
    """The processes of a group that have a handler for SIGTERM; none where the system does not tell."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            told = dict(line.split(":", 1) for line in status.read_text().splitlines())
            process = int(told["Pid"])
            if int(told["SigCgt"], 16) >> signal.SIGTERM - 1 & 1 and os.getpgid(process) == group:
                found.append(process)
    return found


def _ended(command: subprocess.Popen[bytes], seconds: float) -> int | None:
    """A command's status, or None where it still runs after so many seconds."""
    try:
        return command.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _shield() -> None:
    """Shield the command from SIGUSR1 and 2, and have it told when this process dies.

    Slurm may send one to all of a job's processes. It would end a torchrun at once, before its ranks have saved.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
