"""Processes that one has started: every launcher passes on the same signals to them, and they end together."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from living import LONGEST_SECONDS, until, when
from relay.chain.signals import EARLY, SIGNALS
from relay.chain.supervisor import Process, Supervisor, children, program
from relay.script.observed import Observed
from relay.script.process import Child
from stacks import provide

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
# Notes in the file $1 what it is told, and waits for the first TERM. Its name is no text.
NOTES = """
printf '\\377' > /proc/$$/comm
for each in INT USR1 USR2; do trap "echo $each >> $1" $each; done
trap 'echo TERM >> $1; sleep 0.3; exit 3' TERM
touch $1
while :; do sleep 0.05; done
"""


def notes(path: Path) -> list[str]:
    return ["sh", "-c", NOTES, "sh", str(path)]


@pytest.mark.parametrize("number", SIGNALS)
def test_of_several_signals_each_process_gets_the_first_as_sigterm(number: signal.Signals, tmp_path: Path) -> None:
    """A second one would end a launcher at once whose processes save."""
    places = [tmp_path / "0", tmp_path / "1"]

    def tell() -> None:
        for each in (number, *SIGNALS):
            os.kill(os.getpid(), each)
            time.sleep(0.02)

    with Supervisor() as supervisor:
        for place in places:
            supervisor.start(notes(place), os.environ)
        when(lambda: all(place.exists() for place in places), tell)
        assert supervisor.wait() == 3
    assert [place.read_text() for place in places] == ["TERM\n", "TERM\n"]
    assert supervisor.received[0] == number


def test_a_signal_that_comes_before_there_is_a_process_is_passed_on() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Supervisor() as supervisor:
        signal.raise_signal(signal.SIGUSR1)
        supervisor.start(["sleep", "600"], os.environ)
        assert supervisor.wait() == -signal.SIGTERM
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_failure_ends_the_others_and_is_the_one_that_is_told(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        supervisor.start(notes(tmp_path / "0"), os.environ)
        until((tmp_path / "0").exists, "it runs")
        supervisor.start(["sh", "-c", "exit 5"], os.environ)
        assert supervisor.wait() == 5
    assert supervisor.failed == (1, 5)
    assert (tmp_path / "0").read_text() == "TERM\n"


def test_who_heeds_no_signal_is_killed_in_the_end_with_what_it_has_started() -> None:
    with Supervisor(patience_seconds=0.1) as supervisor:
        deaf = supervisor.start(["sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"], os.environ)
        until(psutil.Process(deaf.pid).children, "it has a child")
        (below,) = psutil.Process(deaf.pid).children()
        signal.raise_signal(signal.SIGTERM)
        assert supervisor.wait() == -signal.SIGKILL
    until(lambda: not below.is_running() or below.status() == psutil.STATUS_ZOMBIE, "its child is gone")


def test_where_a_parent_has_ignored_sigchld_a_failure_stays_one() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Supervisor() as supervisor:
            supervisor.start(["false"], os.environ)
            assert supervisor.wait() == 1
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_process_that_has_ended_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another one's by then."""
    told: list[int] = []
    monkeypatch.setattr("relay.chain.supervisor.send", lambda pid, _: told.append(pid))
    with Supervisor() as supervisor:
        supervisor.processes += [Process(1, lambda: 0)]
        signal.raise_signal(signal.SIGTERM)
        assert supervisor.wait() == 0
    assert told == []


@pytest.mark.parametrize(
    ("text", "inner", "shell"),
    [("sleep 600; true", 1, 0), ("exec sleep 600", 0, 1), ("trap 'touch stop; wait' TERM; sleep 600 & wait", 1, 1)],
    ids=["a shell waits", "none any more", "one with a trap"],
)
def test_a_users_script_is_told_past_its_shell(text: str, inner: int, shell: int, tmp_path: Path) -> None:
    """A shell that dies of the signal would leave it alone, and it would be killed unsaved. A trap is there to run."""
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    command = Child(Observed.__new__(Observed), None, None)
    started = command.start([str(script)], os.environ)
    try:
        until(lambda: "sleep" in [program(each) for each in (started.pid, *children(started.pid))], "it runs")
        assert command.whom() == [*children(started.pid) * inner, *[started.pid] * shell]
    finally:
        for each in (*children(started.pid), started.pid):
            os.kill(each, signal.SIGKILL)
        started.wait()


# The launchers

# In the place of a role that needs no torch.
ROLE = """
import os, signal, sys, time

def main(arguments):
    def note(number, _):
        with open(arguments[0], "a") as stream:
            stream.write(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, note)
    open(arguments[0], "w").close()
    while not os.path.getsize(arguments[0]):
        time.sleep(0.05)
    time.sleep(0.3)
    sys.exit(75)
"""
WAITS = "import os, sys; from relay.launch import launcher; sys.exit(launcher._wait_for(sys.argv[1:], os.environ) == 1)"


def launched(launcher: str, python: str, work: Path, place: Path) -> list[str]:
    """The command line of a launcher, with one process that notes in the file `place` what it is told."""
    program = ["preflight.facts", str(work), str(place)]
    if launcher == "torchrun":
        meets = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--local-addr=127.0.0.1"]
        torchrun = [python, "-m", "relay.launch.torchrun", "--nproc-per-node=1", *meets, "-m", "relay.launch.worker"]
        return [python, "-c", WAITS, *torchrun, *program]
    return [python, "-m", "relay.launch.node", launcher, "1", *program]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "launcher",
    ["direct", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "torchrun", "horovodrun"))],
)
def test_every_launcher_passes_on_the_same_signals_as_sigterm(launcher: str, tmp_path: Path) -> None:
    python = str(provide("horovod")) if launcher == "horovodrun" else sys.executable
    shutil.copytree(SCRIPTS / "relay", tmp_path / "relay")
    (tmp_path / "relay" / "preflight" / "facts.py").write_text(ROLE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    started = {}
    for number in EARLY:  # that all are alike is shown above
        (work := tmp_path / number.name).mkdir()
        words = launched(launcher, python, work, work / "told")
        started[number] = subprocess.Popen(words, env=environment)
    try:
        for number, process in started.items():
            place = tmp_path / number.name / "told"
            until(lambda place=place, process=process: place.exists() or process.poll() is not None, "it runs")
            process.send_signal(number)
        statuses = {number: process.wait(LONGEST_SECONDS) for number, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
    told = {number: (tmp_path / number.name / "told").read_text() for number in EARLY}
    assert told == dict.fromkeys(EARLY, "SIGTERM")
    assert set(statuses.values()) == ({0} if launcher == "torchrun" else {1})
