"""The warm server: proofs' processes are forks of it, compute the same, and end with whoever asked for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gate_runs import SCRIPTS, Gates, planned, shortened
from local_driver import until
from relay.base.files import read_json
from relay.base.lifeline import DRIVER
from relay.launch import warm
from relay.process.cpus import VEILED
from relay.spec.run import changed
from shared import session_folder

GATE, REFERENCE = "equivalence.gate", "equivalence.reference"
ENDLESS = 10_000_000  # steps
# What a driver does for its jobs: a line of its input is a job's command line, and it says how the job ended. Without
# words it starts the server although no job asks.
DRIVING = """
import json, os, subprocess, sys
from pathlib import Path
from relay.base import lifeline
from relay.driver.warm import serving
folder = Path(sys.argv[1])
os.environ[lifeline.DRIVER] = lifeline.mark(folder)
with serving(folder) as warm_up:
    for line in sys.stdin:
        words, more = json.loads(line)
        if not words:
            warm_up()
            continue
        with (folder / "job.log").open("a") as log:
            job = subprocess.Popen(words, env={**os.environ, **more}, stdout=log, stderr=log)
        print(job.pid, flush=True)
        print(job.wait(), flush=True)
"""


class Driver:
    """A process that serves its jobs warm, in a folder that all of its processes name in their environment."""

    def __init__(self, gates: Gates) -> None:
        self.gates, self.folder = gates, gates.results
        command = [sys.executable, "-c", DRIVING, str(self.folder)]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def tell(self, words: list[str], environment: dict[str, str]) -> None:
        """Tell the driver a job's command line; without words, that proofs are to come."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps([words, environment]) + "\n")
        self.process.stdin.flush()

    def ask(self, script: str, *options: str, **environment: str) -> psutil.Process:
        """Start a job; its process."""
        assert self.process.stdout
        self.tell([sys.executable, str(SCRIPTS / script), "--results", str(self.folder), *options], environment)
        return psutil.Process(int(self.process.stdout.readline()))

    def status(self) -> int:
        """The last job's exit status, once it has ended."""
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def gate(self, steps: int, trained: int | None = None, **environment: str) -> tuple[psutil.Process, Path]:
        """A job of ddp's gate, with the reference of so many steps, and its verdict's file."""
        gate, reference = planned("ddp")
        place = self.folder / "gate"
        shortened(gate, steps).write(place / "gate.json")
        known = self.gates.reference(shortened(reference, trained or steps))
        output = place / "verdict.json"
        job = self.ask(
            "gate.py",
            *("--spec", str(place / "gate.json"), "--reference", str(known), "--output", str(output)),
            **environment,
        )
        return job, output

    def processes(self, *roles: str) -> list[psutil.Process]:
        """Everything of this driver that is alive, without itself; those of a role."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                mine = process.environ().get(DRIVER, "").endswith(f" {self.folder}")
                if mine and process.status() != psutil.STATUS_ZOMBIE and process.pid != self.process.pid:
                    found.append(process)
        return [p for p in found if not roles or set(roles) & set(_words(p))]

    def ranks(self) -> list[psutil.Process]:
        """The gate's ranks."""
        return [p for p in self.processes(GATE) if "relay.launch.torchrun" not in _words(p)]

    @property
    def server(self) -> psutil.Process:
        (found,) = [p for p in psutil.Process(self.process.pid).children() if "relay.launch.warm_server" in _words(p)]
        return found

    def log(self) -> str:
        return (self.folder / "logs" / "warm-server.log").read_text()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()
        while left := self.processes():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.05)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def gates(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Gates:
    (tmp_path / "results").mkdir()
    return Gates(tmp_path / "results", session_folder(tmp_path_factory) / "gates")


@pytest.fixture
def driver(gates: Gates) -> Iterator[Driver]:
    made = Driver(gates)
    yield made
    made.end()


def judged(output: Path) -> dict[str, Any]:
    """A verdict but for its digest, and the bytes sent, among which are those of waiting: they depend on time."""
    verdict: dict[str, Any] = read_json(output)
    assert verdict["equivalent"], verdict["problems"]
    for part in (verdict, *verdict["own_batches"]):
        del part["bytes_sent_per_step"]
    del verdict["digest"]
    return verdict


@pytest.mark.slow
def test_a_gate_is_judged_as_by_processes_of_its_own(driver: Driver) -> None:
    driver.tell([], {})
    until(lambda: driver.processes("relay.launch.warm_server") != [], "the server is there before a job asks")
    server = driver.server
    _, output = driver.gate(5)
    assert driver.status() == 0
    served = judged(output)
    assert driver.log().count("started as process") == 1
    assert driver.server == server
    _, output = driver.gate(5, TORCH_RELAY_WARM_SERVER="")
    assert driver.status() == 0
    assert judged(output) == served

    # The environment has to be the same; otherwise the job starts its own processes.
    _, output = driver.gate(5, TORCH_SHOW_CPP_STACKTRACES="0")
    assert driver.status() == 0
    assert judged(output) == served
    assert "another value of TORCH_SHOW_CPP_STACKTRACES" in driver.log()
    assert driver.log().count("started as process") == 1

    # While nobody asks, it waits, with one thread, and computes nothing.
    assert server.num_threads() == 1
    before = server.cpu_times()[:2]
    time.sleep(1)
    assert server.cpu_times()[:2] == before

    assert driver.process.stdin
    driver.process.stdin.close()
    assert driver.process.wait(60) == 0
    assert driver.processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_a_gates_processes_end_with_its_job(driver: Driver, number: int) -> None:
    job, _ = driver.gate(ENDLESS, trained=5)
    until(lambda: len(driver.ranks()) == 2, "two ranks")
    job.send_signal(number)
    assert driver.status() in ((75,) if number == signal.SIGTERM else (-number,))
    until(lambda: driver.processes(GATE) == [], "the job's processes have ended")
    assert driver.server.is_running()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["driver", "server"])
def test_nothing_is_left_after_kill_9(driver: Driver, who: str) -> None:
    driver.gate(ENDLESS, trained=5)
    until(lambda: len(driver.ranks()) == 2, "two ranks")
    if who == "driver":
        driver.process.kill()
        until(lambda: driver.processes() == [], "no process is left")
        return
    driver.server.kill()
    assert driver.status() == 75, "interrupted: worth a retry"
    assert driver.processes() == []
    _, output = driver.gate(5)  # a new server, or processes of its own
    assert driver.status() == 0
    assert read_json(output)["equivalent"]


def test_no_training_that_is_measured_is_served() -> None:
    gate, reference = planned("ddp")
    assert warm.may_serve(gate, GATE, {})
    assert warm.may_serve(reference, REFERENCE, {})
    assert not warm.may_serve(gate, "training.trainer", {})
    assert not warm.may_serve(gate, "probe.process", {})


@pytest.mark.parametrize(
    ("values", "environment"),
    [
        ({"device": "cuda"}, {}),
        ({"compile": True}, {}),
        ({"launcher": "spawn"}, {}),
        ({}, {"OMP_PROC_BIND": "close"}),
        ({}, {VEILED + "OMP_PLACES": "cores"}),
    ],
)
def test_what_a_fork_cannot_be_is_not_served(values: dict[str, Any], environment: dict[str, str]) -> None:
    gate, _ = planned("ddp")
    assert not warm.may_serve(changed(gate, **values), GATE, environment)


def test_without_a_server_a_job_starts_its_own_processes() -> None:
    assert warm.start(["python"], {}) is None
    assert warm.start(["python"], {warm.ADDRESS: "nobody-listens-here"}) is None
