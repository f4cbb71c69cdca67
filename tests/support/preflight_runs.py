"""Preflights for the tests: the real worker role in real processes, with a fault arranged around them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gate_runs import planned
from relay.launch.command_lines import free_port
from relay.preflight.checks import check_all
from relay.preflight.findings import Finding
from relay.spec.job import Job
from relay.spec.run import Preflight, changed

ROOT = Path(__file__).resolve().parents[2]
PREFLIGHT = (sys.executable, str(ROOT / "scripts" / "main.py"), "preflight")
TIMEOUT_SECONDS = 240  # of a few seconds' work, on a machine that others use too
OF_OTHERS = ("SLURM", "OMP_", "MASTER_", "GLOO_", "NCCL_", "TORCH", "RANK", "WORLD_SIZE", "LOCAL_", "PYTHONPATH")


# Becomes its arguments, for which the system call flock (its number: the first) fails as on a filesystem without locks.
WITHOUT_LOCKS = """
import ctypes, errno, os, struct, sys
load, equal, give = 0x20, 0x15, 0x06  # of the kernel's filter programs
fail, allow = 0x50000 | errno.ENOLCK, 0x7FFF0000
lines = [(load, 0, 0, 0), (equal, 0, 1, int(sys.argv[1])), (give, 0, 0, fail), (give, 0, 0, allow)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(text)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[2], sys.argv[2:])
"""
FLOCK = {"x86_64": "73", "aarch64": "32"}


def without_locks() -> tuple[str, ...]:
    """What starts a command for which nothing can be locked; skips where the call's number is not known."""
    if os.uname().machine not in FLOCK:
        pytest.skip(f"NOT RUN: the number of flock on {os.uname().machine} is not known")
    return (sys.executable, "-c", WITHOUT_LOCKS, FLOCK[os.uname().machine])


def environment(**more: str) -> dict[str, str]:
    """This process's, without what a launcher or a test before may have left in it."""
    return {k: v for k, v in os.environ.items() if not k.startswith(OF_OTHERS)} | {"OMP_NUM_THREADS": "1"} | more


def run_of(processes: int = 1, **changes: Any) -> Preflight:
    """A planned run on CPUs with so many processes on each node."""
    gate, _ = planned("ddp", processes) if processes > 1 else planned("cpu")
    gate = changed(gate, **{"launcher": "torchrun" if processes > 1 else "none", **changes})  # as of its runs
    compiled, feeding = gate.computation.compile, gate.feeding
    return Preflight(
        id=gate.id, shape=gate.shape, of_stack=gate.stack, place=gate.place, compile=compiled, feeding=feeding
    )


def job_of(run: Preflight, **changes: Any) -> Job:
    """What a site without anything special would ask of Slurm for it."""
    tasks = run.shape.processes_per_node if run.shape.launcher == "srun" else 1
    cpus = run.shape.cpus_per_task * run.shape.processes_per_node // tasks
    job = Job(nodes=run.shape.nodes, tasks_per_node=tasks, cpus_per_task=cpus, memory_mb=100, minutes=5)
    return replace(job, **changes)


@dataclass
class Seen:
    """What came of it."""

    status: int
    facts: dict[str, Any]
    faults: list[str]

    @property
    def findings(self) -> dict[str, Finding]:
        """The findings by check."""
        return {finding.check: finding for finding in check_all(self.facts)}


def collect(folder: Path, run: Preflight, before: Sequence[str], job: Job, **variables: str) -> Seen:
    """Start the worker role in a process of its own, as srun would, with a command before it (taskset, say)."""
    work = folder / "preflight"
    run.write(work / "preflight.json", job)
    words = [*before, sys.executable, "-m", "relay.launch.worker", "preflight.facts", str(work)]
    words += ["--spec", str(work / "preflight.json"), "--output", str(work / "collected.json")]
    own = environment(PYTHONPATH=str(ROOT / "scripts"), RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} | variables
    status = subprocess.run(words, env=own, cwd=folder, timeout=TIMEOUT_SECONDS).returncode
    facts = json.loads((work / "collected.json").read_text())
    faults = [json.loads(path.read_text())["error"] for path in sorted(work.glob("fault-*.json"))]
    return Seen(status, facts, faults)


def preflight(folder: Path, run: Preflight) -> subprocess.CompletedProcess[str]:
    """The job's entry point as a user would call it."""
    spec = folder / "results" / "preflight" / run.id / "preflight.json"
    run.write(spec)
    words = [*PREFLIGHT, "--spec", str(spec), "--output", str(spec.with_name("facts.json"))]
    return subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


def says(found: Finding, severity: str, *words: str) -> bool:
    """Whether it is that bad, and has these words in its line, of which some are the remedy's."""
    assert found.severity == severity, found
    assert found.remedy
    for word in words:
        assert word in found.line, found.line
    return True
