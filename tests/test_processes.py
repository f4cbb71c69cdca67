"""How processes are started, told who they are and meet: command lines, variables, CPUs; and nobody else gets there."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from plans import DDP, only
from relay.base.errors import UserError
from relay.launch import launcher, step
from relay.launch.command_lines import PORT, Meeting, command, free_port
from relay.process import cpus, machine, meeting
from relay.process.cpus import SHARE
from relay.process.ranks import _store
from relay.slurm import allocation
from relay.spec.job import Job
from relay.spec.run import Run, changed

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
ROLE = """
import json, os, sys, time
from relay.process.ranks import Ranks

def main(arguments):
    ranks = Ranks.join("cpu", "gloo")
    told = [os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), os.environ.get("TORCH_RELAY_MEETING")]
    if ranks.gather(ranks.rank) == [0, 1] and ranks.rank == 0:
        print(json.dumps(told), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_no_other_user_and_no_other_node_reaches_it(tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS / "relay", tmp_path / "relay")
    (tmp_path / "relay" / "does.py").write_text(ROLE)
    words = command(run(launcher="direct"), [sys.executable], ["does", str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as started:
        told = started.stdout.readline()
        try:
            address, port, folder = json.loads(told)
            every = psutil.Process(started.pid).children(recursive=True)
            connections = [one for each in (psutil.Process(started.pid), *every) for one in each.net_connections()]
            listening = [one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN]
            mode = stat.S_IMODE(Path(folder).stat().st_mode)
            if os.getuid() == 0:  # which can be another user
                looked = subprocess.run(["ls", folder, f"{folder}/ranks"], user=65534, capture_output=True, text=True)
                assert looked.stdout == ""
                assert looked.stderr.count("Permission denied") == 2
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=5)
        finally:
            started.send_signal(signal.SIGTERM)
            for process in psutil.Process(started.pid).children(recursive=True):
                process.kill()
    assert (address, set(listening) - {"127.0.0.1"}, mode) == ("127.0.0.1", set(), 0o700)
    assert not Path(folder).exists()
    assert str(meeting.MEMORY) in folder or not meeting.MEMORY.exists()


def test_of_several_nodes_it_is_reached_at_their_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own server listens on all interfaces."""
    port = free_port("")
    for name, value in {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    store = _store(0, 1)
    assert store is not None
    socket.create_connection(("127.0.0.2", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


# How processes are started and told who they are: command lines, variables, shares of CPUs, and what was granted.


STEP = {"SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3", "SLURM_JOB_ID": "12345", "SLURM_NODEID": "1"}
STEP |= {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", PORT: "22345"}


def run(**changes: Any) -> Run:
    """A run of ddp on one node with two processes, and these changes."""
    return changed(only(DDP), **changes)


def job(**changes: Any) -> Job:
    return replace(Job(nodes=2, tasks_per_node=2, cpus_per_task=3, memory_mb=4000, minutes=5), **changes)


def test_a_port_that_is_taken_is_passed_over() -> None:
    first = free_port()
    with socket.create_server(("127.0.0.1", first)):
        assert free_port() != first


def test_torchrun_of_several_nodes_meets_at_the_first_ones_address() -> None:
    words = command(run(nodes=2, launcher="torchrun"), ["python"], ["trainer", "work"], Meeting.of_slurm(STEP, 2))
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=10.1.2.3", "--master-port=22345"} <= set(words)
    assert "--rdzv-backend=c10d" not in words


def test_a_rendezvous_on_localhost_is_refused() -> None:
    for address in ("127.0.1.1", ""):
        with pytest.raises(UserError, match=f"SLURM_LAUNCH_NODE_IPADDR: '{address}' is not allowed"):
            Meeting.of_slurm(STEP | {"SLURM_LAUNCH_NODE_IPADDR": address}, 2)


def test_threads_are_bound_only_where_a_process_has_cpus_of_its_own(tmp_path: Path) -> None:
    openmp = {"places": "cores", "bind": "close", "stack": "512m"}
    shared = step.variables(run(threads=3), job(openmp=openmp), tmp_path)
    assert (shared["OMP_NUM_THREADS"], shared["OMP_STACKSIZE"]) == ("3", "512m")
    assert "OMP_PLACES" not in shared
    own = step.variables(run(threads=3, launcher="srun"), job(openmp=openmp, confined=True), tmp_path)
    assert (own["OMP_PLACES"], own["OMP_PROC_BIND"]) == ("cores", "close")


def test_the_sites_interface_reaches_both_backends(tmp_path: Path) -> None:
    told = step.variables(run(nodes=2), job(network_interface="ib0"), tmp_path)
    assert told["NCCL_SOCKET_IFNAME"] == told["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "GLOO_SOCKET_IFNAME" not in step.variables(run(), job(network_interface="ib0"), tmp_path)
    assert "NCCL_SOCKET_IFNAME" not in step.variables(run(), job(), tmp_path)


@pytest.mark.parametrize(("share", "parts"), [("2", [{0, 1}, {2, 3}]), ("1", [{0}, {2}])])
def test_parts_of_several_cpus_do_not_overlap(monkeypatch: pytest.MonkeyPatch, share, parts) -> None:
    """Nor do they share a core while others are idle."""
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, mask: taken.append({*mask}))
    monkeypatch.setattr(cpus, "_neighbours", sorted)
    for rank in ("0", "1"):
        monkeypatch.setattr(cpus, "_granted", None)
        for name, value in {SHARE: share, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": rank}.items():
            monkeypatch.setenv(name, value)
        cpus.settle()
    assert taken == parts


def test_nothing_inherited_has_the_last_word_over_the_declared_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT"):
        monkeypatch.setenv(name, "1")
    told = launcher.inherited(run(threads=3), None, SCRIPTS)
    assert {name: value for name, value in told.items() if "THREAD" in name} == {"OMP_NUM_THREADS": "3"}


# What Slurm granted, as `scontrol show job` of 22.05 and 24.11 say it

GRANTED = {"JobId": "7", "NumNodes": "2", "NumTasks": "4", "CPUs/Task": "3", "MinMemoryNode": "4000M"}
GRANTED |= {"TRES": "cpu=12,mem=8000M,node=2,billing=12"}
NEWER = GRANTED | {"TRES": "", "ReqTRES": "cpu=12", "AllocTRES": "cpu=12,mem=7.8125G,node=2,gres/gpu=4"}


def test_what_was_granted_as_declared_passes() -> None:
    allocation.check(job(), GRANTED)
    allocation.check(job(gpus_per_node=2), GRANTED | {"TresPerNode": "gres:gpu:a100:2"})
    for shown in ("gres/gpu:2", "gres/gpu=2", "gres/gpu:a100=2"):
        allocation.check(job(gpus_per_node=2), NEWER | {"TresPerNode": shown})
    allocation.check(job(memory_mb=64000), {"JobId": "7", "NumNodes": "2", "MinMemoryNode": "62.50G"})
    # More than declared passes, and what is not told is not compared.
    allocation.check(job(), GRANTED | {"CPUs/Task": "N/A", "TRES": "cpu=64,mem=1T,node=2"})
    allocation.check(job(), {"JobId": "7"})


def test_another_grant_is_refused_with_both_numbers() -> None:
    for told, granted in {
        "nodes: 1, the run declares 2": {"NumNodes": "1"},
        "tasks: 8, the run declares 4": {"NumTasks": "8"},
        "CPUs of a task: 1, the run declares 3": {"CPUs/Task": "1"},
        "CPUs in all: 6, the run declares 12": {"TRES": "cpu=6,mem=8000M"},
        "memory_mb of a node: 2000, the run declares 4000": {"MinMemoryNode": "2048000K"},
        "memory_mb in all: 4096, the run declares 8000": {"AllocTRES": "cpu=12,mem=4G"},
        "GPUs of a node: 1, the run declares 2": {"TresPerNode": "gres:gpu:1"},
    }.items():
        with pytest.raises(UserError, match=told):
            allocation.check(job(gpus_per_node=2), GRANTED | {"TresPerNode": "gres:gpu:2"} | granted)


def test_steps_say_everything_again() -> None:
    words = allocation.srun(job(gpus_per_node=2, gpu_name="a100"), 3, 4)
    assert words[0] == "srun"
    shape = {"--nodes=2", "--ntasks=6", "--ntasks-per-node=3", "--cpus-per-task=4", "--kill-on-bad-exit=1"}
    assert shape | {"--gpus-per-node=a100:2"} <= set(words)
    assert not any(word.startswith("--gpu-bind") for word in words)
    assert "--cpu-bind=cores" not in words
    assert "--cpu-bind=cores" in allocation.srun(job(confined=True), 2, 3)


def test_what_a_node_of_an_allocation_has_is_its_share() -> None:
    assert allocation.of_each_node(NEWER) == (2, 4000)
    assert allocation.of_each_node(GRANTED) == (0, 4000)
    assert allocation.of_each_node({}) == (None, None)


def test_where_slurm_does_not_tell_a_jobs_end_it_is_the_declared_time_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(allocation.END, raising=False)
    monkeypatch.setattr(allocation.time, "time", lambda: 1000.5)
    assert allocation.end_variables(job(minutes=5), {"EndTime": "Unknown"}) == {allocation.END: "1300"}


def test_no_secret_of_the_environment_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JWT", "SLURM_PROCID", "NCCL_DEBUG", "TORCH_HUB_TOKEN", "OMP_PLACES"):
        monkeypatch.setenv(name, "here")
    found = machine.facts(torch.device("cpu"))["environment"]
    assert {"SLURM_PROCID", "NCCL_DEBUG", "OMP_PLACES"} <= found.keys()
    assert not {"SLURM_JWT", "TORCH_HUB_TOKEN"} & found.keys()
