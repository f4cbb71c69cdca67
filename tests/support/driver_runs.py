"""The toy workflow of `driver_workflow/`, driven on a cluster.

A plugin of pytest for its fixture, and a module that the tests import (hence PYTEST_DONT_REWRITE).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from local_driver import ROOT, as_in_a_terminal
from mini_slurm import UNFINISHED, MiniSlurm

PREFIX = "relay"
OPTIONS = (
    "--logger=torch-relay --executor torch-relay --jobs 20 --torch-relay-no-requeue --nolock --rerun-incomplete"
    f" --torch-relay-jobname-prefix {PREFIX} --torch-relay-init-seconds-before-status-checks 1 --latency-wait 10"
)
HELD = 600  # seconds of jobs that sleep until they are released
JOBS = ["first.0.txt", "first.1.txt", "first.2.txt", "last.txt"]


class Workplace:
    """A folder in which the toy workflow is driven, and what its jobs wrote there."""

    def __init__(self, cluster: MiniSlurm, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.started: list[subprocess.Popen[str]] = []

    @staticmethod
    def arguments(*targets: str, seconds: int = 1, first: int = 3) -> list[str]:
        """Of Snakemake; `targets` may hold options, too, as long as they take one value or none."""
        config = ["--config", f"seconds={seconds}", f"first={first}"]
        return [*targets, *OPTIONS.split(), "--snakefile", f"{ROOT}/tests/driver_workflow/Snakefile", *config]

    def drive(
        self, *targets: str, seconds: int = 1, first: int = 3, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        program = f"{ROOT}/tests/support/fast_snakemake.py"
        command = [sys.executable, program, *self.arguments(*targets, seconds=seconds, first=first)]
        own = {"cwd": self.folder, "env": environment or self.cluster.environment, "preexec_fn": as_in_a_terminal}
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, start_new_session=True, **own, **pipe)
        self.started.append(process)
        return process

    def end(self) -> None:
        """No driver outlives the test."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def release(self) -> None:
        """Let jobs that sleep go on."""
        (self.folder / "go").touch()

    def lines(self, name: str) -> list[str]:
        """What jobs noted in started.txt or ended.txt, in order of their names."""
        path = self.folder / name
        return sorted(path.read_text().split()) if path.exists() else []

    def submitted(self) -> list[dict[str, str]]:
        """All jobs that Slurm ever got for this folder's results."""
        jobs = self.cluster.jobs()
        return [job for job in jobs if job["WorkDir"] == str(self.folder) and job["JobName"].startswith(f"{PREFIX}_")]

    def left(self) -> list[str]:
        return [job["JobId"] for job in self.submitted() if job["JobState"] in UNFINISHED]


@pytest.fixture
def place(cluster: MiniSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Slurm's commands of the cluster for this process, too; no driver outlives the test."""
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    place = Workplace(cluster, tmp_path)
    yield place
    place.end()
