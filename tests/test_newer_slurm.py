"""What holds on this machine's Slurm holds on a newer one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import newer_slurm
from newer_slurm import VERSION_VARIABLE, inside, root_folder
from slurm_packages import require

#: What the quick look runs there: node ids, relative to the checkout.
SMOKE = (
    "tests/test_mini_slurm.py::test_slurm_is_the_one_asked_for",
    "tests/test_mini_slurm.py::test_a_jobs_disk_is_its_nodes_own_and_ends_with_it",
    "tests/test_slurm.py::test_two_nodes_train_the_same_as_one_process",
)

pytestmark = pytest.mark.skipif(VERSION_VARIABLE in os.environ, reason="these run tests there, and are there already")


@pytest.fixture(scope="module")
def root() -> Path:
    require(newer_slurm.NEEDED)
    return root_folder()


def pytest_inside(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--quiet", *arguments]
    return inside(root, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.long
@pytest.mark.timeout(900)  # making the root folder included
def test_a_smoke_of_the_tests_on_the_newer_slurm(root: Path) -> None:
    """No other test runs on a newer Slurm."""
    done = pytest_inside(root, *SMOKE)
    assert done.returncode == 0, done.stdout
    assert f"{len(SMOKE)} passed" in done.stdout, done.stdout  # none skipped
