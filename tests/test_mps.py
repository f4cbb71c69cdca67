"""Replicas that share a device: the life of NVIDIA's MPS daemon, by a stand-in for its program, and what they compute.

The stand-in only answers and quits as the real program is documented to do; the real one was never run here.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

import preloaded
from gate_runs import FEW_STEPS, Gates
from living import until, words
from relay import strategies
from relay.process import mps_daemon

CONTROL = "nvidia-cuda-mps-control"
# -f: the daemon, in the foreground; else a command comes on standard input.
STAND_IN = """#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
  {refuses}
  echo $$ > "$pipe/daemon"; : > "$CUDA_MPS_LOG_DIRECTORY/control.log"
  while [ ! -e "$pipe/quit" ]; do sleep 0.05; done
  rm "$pipe/daemon"; exit 0
fi
read command
[ -e "$pipe/daemon" ] || {{ echo "Cannot find MPS control daemon process"; exit 1; }}
[ "$command" != quit ] || : > "$pipe/quit"
"""


def _serves(folder: str, local_rank: int, told: Connection) -> None:
    """A replica: tells what it was told, and what it sees, in the service until it hears something; then once more."""
    os.environ |= {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TORCH_RELAY_NODE_DISK": f"{folder}/disk"}
    os.environ |= {"MASTER_PORT": "29999", "LOCAL_RANK": str(local_rank)}
    printed = StringIO()
    with redirect_stdout(printed), strategies.load("mps").service("run-1", "cuda"):
        told.send((printed.getvalue(), [os.environ.get(name) for name in mps_daemon.FOLDERS]))
        told.recv()
    told.send(os.environ.get("CUDA_MPS_PIPE_DIRECTORY"))


class Replica:
    """One of the node's replicas: a fork that has torch imported."""

    def __init__(self, folder: Path, local_rank: int) -> None:
        self.told, its = Pipe()
        self.process = preloaded.forked(_serves, str(folder), local_rank, its)
        its.close()

    def said(self) -> Any:
        """What it tells next."""
        assert self.told.poll(120)
        return self.told.recv()

    def ends(self) -> Any:
        """Let it leave the service; what it sees then."""
        self.told.send("go on")
        seen = self.said()
        self.process.join(120)
        return seen


class Node:
    """A pretended node: a folder for programs, and the node's own disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.replicas = folder, list[Replica]()
        for name in ("bin", "disk"):
            (folder / name).mkdir()

    def with_program(self, refuses: str = "") -> Node:
        """The stand-in on the PATH; `refuses` is what the daemon does at its start."""
        program = self.folder / "bin" / CONTROL
        program.write_text(STAND_IN.format(refuses=refuses))
        program.chmod(0o755)
        return self

    def replica(self, local_rank: int) -> Replica:
        """One of the node's replicas, in the service until it is told to go on."""
        self.replicas.append(Replica(self.folder, local_rank))
        return self.replicas[-1]

    def processes(self) -> list[psutil.Process]:
        """What is alive of the daemon and its keeper, which work in this folder."""
        return [p for p in psutil.process_iter() if str(self.folder) in " ".join(words(p))]


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node on which no process is left, also where a test fails."""
    made = Node(tmp_path_factory.mktemp("mps"))
    yield made
    for process in (*made.processes(), *(replica.process for replica in made.replicas)):
        process.kill()


def test_clients_count_the_gpus_that_the_daemon_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2,3 they would find none: the daemon has made 0,1 of them."""
    for shown, said in (("2,3", "0,1"), ("GPU-8f,GPU-9a", "0,1"), ("0", "0")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert mps_daemon.renumbered() == {"CUDA_VISIBLE_DEVICES": said}


@pytest.mark.slow
def test_a_daemon_serves_all_replicas_of_the_node_and_ends_with_them(node: Node) -> None:
    replicas = [node.with_program().replica(rank) for rank in (1, 0)]
    told = [replica.said() for replica in replicas]
    assert told[0] == told[1]
    printed, (pipe, log) = told[0]
    assert printed == ""
    assert Path(pipe).is_relative_to(node.folder / "disk")
    assert Path(pipe) != Path(log)
    assert (Path(log) / "control.log").exists()
    daemon = int((Path(pipe) / "daemon").read_text())
    assert psutil.pid_exists(daemon)
    assert [replica.ends() for replica in replicas] == [None, None]
    until(lambda: not psutil.pid_exists(daemon) and not node.processes(), "the daemon is gone")
    assert not Path(pipe).parent.exists()


@pytest.mark.slow
def test_a_signal_to_the_whole_job_ends_no_daemon_that_replicas_need_and_killed_ones_leave_none(node: Node) -> None:
    first = node.with_program().replica(0)
    daemon = int((Path(first.said()[1][0]) / "daemon").read_text())
    (keeper,) = [p for p in psutil.Process(first.process.pid).children() if p.name() == "sh"]
    keeper.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert psutil.pid_exists(daemon)
    first.process.kill()
    until(lambda: not psutil.pid_exists(daemon) and not node.processes(), "the daemon is gone")


@pytest.mark.slow
def test_without_mps_the_replicas_say_so_and_run_anyway(node: Node) -> None:
    node.with_program("echo no permission; exit 1")
    first, second = (node.replica(rank) for rank in (0, 1))
    (printed, seen), other = first.said(), second.said()
    assert printed.startswith("mps: no MPS: ")
    assert "no permission" in printed
    assert (seen, other) == ([None, None], ("", [None, None]))
    for replica in (first, second):
        replica.ends()
    until(lambda: not node.processes(), "no process is left")


@pytest.mark.slow
def test_replicas_on_a_cpu_compute_the_same_training(gates: Gates) -> None:
    verdict = gates.verdict("mps", 1, steps=FEW_STEPS, processes_per_device=2)
    assert verdict["equivalent"], verdict["problems"]
