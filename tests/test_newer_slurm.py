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

TESTS = "tests"
#: What the quick look runs there: node ids, relative to the checkout.
SMOKE = (
    "tests/test_mini_slurm.py::test_slurm_is_the_one_asked_for",
    "tests/test_mini_slurm.py::test_nodes_have_names_and_addresses_of_their_own",
    "tests/test_mini_slurm.py::test_slurm_hands_out_gpus",
    "tests/test_mini_slurm.py::test_a_job_is_told_as_slurm_saw_it",
    "tests/test_mini_slurm.py::test_snakemakes_plugin_sees_the_end_of_a_job_at_once",
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
    done = pytest_inside(root, *SMOKE)
    assert done.returncode == 0, done.stdout
    assert f"{len(SMOKE)} passed" in done.stdout, done.stdout  # none skipped


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_all_slurm_tests_on_the_newer_slurm(root: Path) -> None:
    done = pytest_inside(root, "-m", "slurm", TESTS)
    assert done.returncode == 0, done.stdout
    assert "NOT run" not in done.stdout, done.stdout


@pytest.mark.long
def test_a_command_inside_sees_the_newer_debian_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    script = 'pwd; . /etc/os-release; echo $VERSION_CODENAME; setsid sleep 67 & echo "$1" > "$2/out"; exit 7'
    done = inside(root, ["sh", "-c", script, "sh", "two  words", tmp_path], stdout=subprocess.PIPE)
    assert done.returncode == 7
    assert done.stdout.split() == [str(newer_slurm.CHECKOUT), newer_slurm.RELEASE]
    assert (tmp_path / "out").read_text() == "two  words\n"
    assert subprocess.run(["pgrep", "-f", "sleep 67"], capture_output=True).returncode == 1
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.slow
def test_an_unfinished_root_folder_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failed or killed debootstrap leaves nothing that counts. (A stand-in for the real one's minutes.)"""
    program = tmp_path / "bin" / "debootstrap"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ -e "$4" ] && exit 9; mkdir -p "$4/etc"; echo made by "$0"; exit "$FAIL"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(RuntimeError, match=r"status 1\nmade by"):
        root_folder()
    monkeypatch.setenv("FAIL", "0")
    root = root_folder()
    assert (root / "etc").is_dir()
    assert [path.name for path in root.parent.iterdir() if path.is_dir()] == [root.name]
    assert root_folder() == root  # and is not made twice: the stand-in would refuse
