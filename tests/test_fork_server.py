"""Forks of a process that has imported torch stand for workers: what goes in, comes out, and ends them."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from chain_results import assert_same, result
from chain_runs import Bench
from living import LONGEST_SECONDS, until, words
from relay.base.lifeline import DRIVER, LAUNCHER
from relay.launch import fork_server
from relay.spec import arithmetic
from relay.spec.setting import Shape

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
ROLE = """
import json, os, psutil, random, signal, sys, time

def main(arguments):
    found = {"torch": "torch" in sys.modules, "pid": os.getpid(), "parent": os.getppid(), "random": random.random()}
    found |= {"server": psutil.Process(os.getppid()).ppid()}
    found |= {"folder": os.getcwd(), "rank": os.environ.get("RANK"), "cpus": len(os.sched_getaffinity(0))}
    found |= {"code": __file__, "asked": os.environ.get("TORCH_RELAY_FORKED")}
    print(json.dumps(found), flush=True)
    exec(arguments[0])
"""


@dataclass
class Here:
    """A driver's folder: the frozen code, with a role that does what it is told."""

    folder: Path
    driver: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def told(self) -> dict[str, str]:
        """What `launch` tells a worker."""
        return {fork_server.OWNER: str(self.driver.pid), LAUNCHER: str(os.getpid()), "PYTHONSAFEPATH": "1"}

    def server_name(self, monkeypatch: pytest.MonkeyPatch) -> str:
        for name, value in self.told.items():
            monkeypatch.setenv(name, value)
        return fork_server._name()

    def worker(self, does: str = "", environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        code = self.folder / "code"
        if not code.exists():
            shutil.copytree(SCRIPTS / "relay", code / "relay")
            (code / "relay" / "does.py").write_text(ROLE)
        words = [sys.executable, "-m", "relay.launch.worker", "does", str(self.folder), does]
        own = {**os.environ, **self.told, "PYTHONPATH": str(code), **(environment or {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        worker = subprocess.Popen(words, env=own, cwd=self.folder, text=True, **pipes)
        self.workers.append(worker)
        return worker

    def found(self, does: str = "", environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What a worker says that ends well."""
        said, complaints = self.worker(does, environment).communicate(timeout=LONGEST_SECONDS)
        assert not complaints
        return dict(json.loads(said))


@pytest.fixture(scope="module")
def driver() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.fixture
def here(tmp_path: Path, driver: subprocess.Popen[bytes]) -> Iterator[Here]:
    here = Here(tmp_path, driver)
    yield here
    for worker in here.workers:
        worker.kill()
        worker.communicate()


def first_line(worker: subprocess.Popen[str]) -> dict[str, Any]:
    return dict(json.loads(worker.stdout.readline()))


def is_over(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_fork_has_torch_and_all_that_its_worker_was_given(here: Here) -> None:
    found, other = here.found(environment={"RANK": "3"}), here.found()
    assert found["torch"] is other["torch"] is True
    assert found["server"] == other["server"] != os.getpid()
    assert found["parent"] != os.getpid()
    assert (found["rank"], other["rank"]) == ("3", None)
    assert found["folder"] == str(here.folder)
    assert found["code"].startswith(str(here.folder))
    assert found["cpus"] == len(os.sched_getaffinity(0))
    assert found["random"] != other["random"]
    assert found["asked"] is None


def test_its_code_is_its_workers_and_not_the_servers(here: Here) -> None:
    here.found()
    (here.folder / "code" / "relay" / "does.py").write_text(ROLE.replace('"torch":', '"newer": 1, "torch":'))
    assert here.found()["newer"] == 1


def test_a_fork_ends_with_its_worker(here: Here) -> None:
    worker = here.worker("signal.signal(15, signal.SIG_IGN); time.sleep(100)")
    fork = first_line(worker)["pid"]
    assert fork != worker.pid
    worker.kill()
    until(lambda: is_over(fork), "the fork is over")
    killed = here.worker("os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.wait(LONGEST_SECONDS) == -signal.SIGKILL, "and it ends as its fork"


@pytest.mark.parametrize("killed", ["parent", "server"])
def test_a_fork_is_told_to_end_when_its_parent_is_killed_and_not_when_the_server_is(here: Here, killed: str) -> None:
    worker = here.worker("signal.signal(15, lambda *_: (print('saved', flush=True), os._exit(0))); time.sleep(100)")
    told = first_line(worker)
    psutil.Process(told[killed]).kill()
    if killed == "server":
        until(lambda: is_over(told["server"]), "the server is over")
        assert here.found()["torch"], "the next worker has a new server"
        worker.terminate()
    said, _ = worker.communicate(timeout=LONGEST_SECONDS)
    assert "saved" in said
    assert worker.returncode == (1 if killed == "parent" else 0)


def test_so_does_whatever_changes_arithmetic(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = here.server_name(monkeypatch)
    for name in (*arithmetic.VARIABLES, "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD", "LANG"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "17")
            assert here.server_name(changed) != usual, name
    for name in ("RANK", "MASTER_PORT", "PYTHONPATH", "TORCH_FR_DUMP_TEMP_FILE", LAUNCHER):
        monkeypatch.setenv(name, "17")
    assert here.server_name(monkeypatch) == usual


def test_the_server_ends_with_its_driver_but_lets_forks_come_to_their_end(here: Here) -> None:
    with subprocess.Popen(["sleep", "1000"]) as driver:
        server = Here(here.folder, driver).found()["server"]
        assert not is_over(server)
        worker = Here(here.folder, driver).worker("signal.signal(15, lambda *_: sys.exit(7)); time.sleep(100)")
        assert first_line(worker)["server"] == server
        driver.kill()
    time.sleep(1)
    assert worker.poll() is None
    worker.terminate()
    assert worker.wait(LONGEST_SECONDS) == 7
    until(lambda: is_over(server), "the server is over")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, who alone can be another user")
def test_another_users_server_is_not_spoken_to(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_DYNAMIC", "false")
    name = here.server_name(monkeypatch)
    with as_another_user(name, takes_it=True):
        shown = name.replace("\0", "@")
        until(lambda: f"{shown}\n" in Path("/proc/net/unix").read_text(), "its name is taken")
        worker = here.worker()
        found = json.loads(worker.communicate(timeout=LONGEST_SECONDS)[0])
    assert found["pid"] == worker.pid


@contextmanager
def as_another_user(name: str, *, takes_it: bool) -> Iterator[None]:
    """As another user, take the server's name before it does; or connect to it, and say nothing."""
    other = multiprocessing.get_context("fork").Process(target=_strange, args=(name, takes_it))
    other.start()
    try:
        yield
    finally:
        other.kill()


def _strange(name: str, takes_it: bool) -> None:
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(name) if takes_it else stranger.connect(name)
        stranger.listen() if takes_it else None
        time.sleep(100)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, who alone can be another user")
def test_another_user_keeps_nobody_waiting(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    server = here.found()["server"]
    with as_another_user(here.server_name(monkeypatch), takes_it=False):
        time.sleep(1)
        began = time.monotonic()
        assert here.found()["server"] == server
        assert time.monotonic() - began < fork_server.START_SECONDS / 2


def test_who_may_be_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def served(role: str = "training.trainer", **changed: Any) -> bool:
        usual = {"device": "cpu", "devices_per_node": 2, "cpus_per_task": 2, "threads": 1, "launcher": "direct"}
        return bool(fork_server.owner(role, Shape(**(usual | changed))))

    assert not served()
    monkeypatch.setenv(DRIVER, "17 /")
    assert (served(), served(device="cuda")) == (True, True)
    assert (served("preflight.facts"), served(launcher="spawn")) == (False, False)
    for name, value in (("OMP_PROC_BIND", "true"), (fork_server.OWNER, "0")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert not served(), name


def test_forks_train_the_same(bench: Bench, driver: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    alone, forked = (bench.chain(name, total_steps=12) for name in ("alone", "forked"))
    assert forked.segment(**{DRIVER: f"{driver.pid} {forked.results}"}).status == 0
    assert [process for process in psutil.process_iter() if "relay.launch.fork_server" in words(process)]
    monkeypatch.setenv(fork_server.OWNER, "0")
    assert_same(result(forked), result(alone.train()))
