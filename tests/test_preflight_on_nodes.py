"""Preflight for real: each trap that can be made here is made around the real worker role, and its remedy is read."""

import json
import os
import shlex
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import debian_packages
import preflight_runs
from mini_slurm import MiniSlurm
from preflight_runs import ROOT, Seen, collect, job_of, preflight, run_of, says, without_locks
from relay.preflight import node
from relay.preflight.page import page
from relay.spec.job import Job
from relay.spec.run import Run

pytestmark = pytest.mark.slow
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: namespaces and control groups need root")


# For real: one process, one node


def test_all_is_right_on_this_machine(tmp_path: Path) -> None:
    """Two processes by torchrun, through the entry point; then its page."""
    run = run_of(2)
    done = preflight(tmp_path, run)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "results" / "preflight" / run.id / "facts.json").read_text())
    assert [rank["rank"] for rank in facts["ranks"]] == [0, 1]
    assert {rank["torch"]["version"] for rank in facts["ranks"]} == {torch.__version__}
    assert all(row["right"] and row["processes"] == 2 and row["seconds"] > 0 for row in facts["allreduce"])
    row = facts["allreduce"][-1]  # the definitions, by hand
    assert row["algorithm_gb_per_second"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
    assert row["bus_gb_per_second"] == pytest.approx(row["algorithm_gb_per_second"] * 2 * (2 - 1) / 2)
    assert all(rank["seen"] == {"work": [True, True], "node_disk": [True, True]} for rank in facts["ranks"])
    assert facts["ranks"][0]["node_disk"]["written_bytes_per_second"] > 0
    assert not list(tmp_path.rglob(".relay-seen-*"))
    words = [*preflight_runs.PREFLIGHT, "--page", tmp_path / "results" / "preflight"]
    assert f"1×2c {socket.gethostname()}" in subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_what_torch_compile_builds_is_built_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real compiler: Python's header in an empty folder, then OpenMP that the compiler has not."""
    debian_packages.require()
    for variable in ("CXX", "CC"):
        monkeypatch.delenv(variable, raising=False)
        assert node.compiling(variable) is None
    without = tmp_path / "g++"
    without.write_text('#!/bin/sh\ncase "$*" in *-fopenmp*) echo "error: no OpenMP here" >&2; exit 1;; esac\n')
    without.chmod(0o755)
    monkeypatch.setenv("CXX", str(without))
    assert node.compiling("CXX") == "error: no OpenMP here"
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    for variable in ("CXX", "CC"):
        assert "Python.h: No such file" in str(node.compiling(variable))


@contextmanager
def memory_group(limit_mb: int) -> Iterator[Path]:
    """A control group with a memory limit, of either version; skips where none can be made."""
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / f"relay-preflight-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit_mb * 2**20))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("NOT RUN: no control group with a memory limit can be made here")


@pytest.fixture(scope="module")
def unlucky(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One process with many faults at once that do not disturb each other: each test below reads one."""
    folder = tmp_path_factory.mktemp("unlucky")
    packages = folder / "home" / ".local" / "lib" / "site-packages"
    (packages / "torchvision").mkdir(parents=True)
    (packages / "torchvision" / "__init__.py").write_text("from torch import was_removed\n")
    (packages / "torch").symlink_to(Path(torch.__file__).parent)
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)  # as /tmp is
    run = run_of(1, threads=2, cpus_per_task=2, loader="dataloader")
    told = {"OMP_STACKSIZE": "1m", "TORCH_NCCL_ASYNC_HANDLING": "1"}
    told |= {"HOME": str(folder / "home"), "TRITON_CACHE_DIR": str(folder / "open" / "triton")}
    told |= {"GLOO_ANYTHING": "told", "NCCL_ANYTHING": "told too", "PYTHONPATH": f"{packages}:{ROOT / 'scripts'}"}
    declared = job_of(run, memory_mb=10**9, node_disk="$NOT_SET_ANYWHERE/disk")
    return collect(folder, run, (*without_locks(), "taskset", "-c", "0"), declared, **told)


@pytest.mark.parametrize(
    ("check", "severity", "words"),
    [
        ("CPUs", "stop", ["may use 1 CPUs (0), it needs 2", "srun --cpus-per-task=2"]),
        ("misspelt variables", "warn", ["TORCH_NCCL_ASYNC_HANDLING", "its name is TORCH_NCCL_ASYNC_ERROR_HANDLING"]),
        ("node's disk", "stop", ["$NOT_SET_ANYWHERE/disk", "NOT_SET_ANYWHERE is not set", "correct `node_disk`"]),
        ("torchvision", "warn", ["does not fit torch", "was_removed", "a task that imports it fails"]),
        ("caches", "note", ["TRITON_CACHE_DIR is", "/open/triton", "others can write to", "/open;", "of your own"]),
        ("home folder's packages", "warn", ["/.local/lib/site-packages/torch", "PYTHONNOUSERSITE=1"]),
        ("memory", "note", ["the job declares 1000000000 MB", "correct the site's file"]),
        ("locks", "warn", ["rank 0", "no locks available", "not kept apart", "flock"]),
    ],
)
def test_faults_of_one_process(unlucky: Seen, check: str, severity: str, words: list[str]) -> None:
    assert says(unlucky.findings[check], severity, *words)


def test_what_was_not_granted_is_a_mistake_as_well(unlucky: Seen) -> None:
    """The trainer's own check of the grant ends the process, after the facts were written."""
    assert unlucky.status == 1
    assert unlucky.facts["complete"]
    (fault,) = unlucky.faults
    assert "may use only 1 CPUs" in fault


@needs_root
def test_a_memory_limit_below_what_was_asked_for_and_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    run = run_of(1)
    with memory_group(1500) as group:
        into = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
        declared = job_of(run, memory_mb=2000, confined=True, node_disk="/proc")
        seen = collect(tmp_path, run, into, declared)
    assert says(seen.findings["memory"], "stop", "allows rank 0", "1500 MB, the job declares 2000 MB", "--mem=2000M")
    assert says(seen.findings["node's disk"], "stop", "/proc (node_disk '/proc') cannot be used")


# For real: on Slurm


@pytest.mark.slurm
def test_a_job_that_is_not_the_one_declared(cluster: MiniSlurm, tmp_path: Path) -> None:
    """Less memory than declared, as `--resources mem_mb=…` makes it."""
    run = run_of(2, nodes=1, launcher="srun")
    status, folder, printed = submitted(cluster, tmp_path, run, job_of(run, memory_mb=900), "--mem=500M")
    assert status == 1, printed
    (line,) = json.loads((folder / "problems.json").read_text())
    assert "memory_mb of a node: 500, the run declares 900" in line
    assert "Verdict: NO" in page(folder.parent)


def submitted(cluster: MiniSlurm, place: Path, run: Run, declared: Job, *more: str) -> tuple[int, Path, str]:
    """Run the entry point as a job of that shape: its exit status, its folder, and what it printed."""
    folder = place / "results" / "preflight" / run.id
    run.write(folder / "preflight.json", declared)
    files = ["--spec", folder / "preflight.json", "--output", folder / "facts.json"]
    words = [*preflight_runs.PREFLIGHT, *files]
    asked = [f"--nodes={declared.nodes}", f"--ntasks-per-node={declared.tasks_per_node}", f"--ntasks={declared.tasks}"]
    asked += [f"--cpus-per-task={declared.cpus_per_task}", f"--mem={declared.memory_mb}M", *more]
    told = ["--parsable", "--partition=cpu", "--time=5", f"--output={place}/job.log"]
    sent = cluster.run("sbatch", *told, *asked, f"--wrap=exec {shlex.join(map(str, words))}", cwd=place)
    found = cluster.ended(sent.stdout.strip(), preflight_runs.TIMEOUT_SECONDS)
    return int(found["ExitCode"].split(":")[0]), folder, (place / "job.log").read_text()
