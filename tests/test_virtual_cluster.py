"""The virtual cluster as its users have it: `relay virtual-cluster`, and what it says where it cannot be."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from living import LONGEST_SECONDS
from mini_slurm import require
from relay.virtual_cluster.slurm_conf import Host, Node, Partition, slurm_conf

PROGRAM = Path(__file__).resolve().parents[1] / "scripts" / "main.py"


def virtual_cluster(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, "virtual-cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, timeout=LONGEST_SECONDS)


def of_cluster(folder: Path) -> list[str]:
    """What is left of a cluster: processes with its configuration, mounts with its files, its bridge's ports."""
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    left = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                left.append(environment.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode())
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    return left + [str(device) for device in (folder / "dev").glob("*")]


def links(bridge: str) -> list[str]:
    return [name for _, name in socket.if_nameindex() if re.fullmatch(rf"{bridge}(n\d+)?", name)]


def bridge_of(folder: Path) -> str:
    address = re.search(r"SlurmctldHost=\S+\(10\.213\.(\d+)\.254\)", (folder / "slurm.conf").read_text())
    return f"relay{address[1]}"


@pytest.fixture
def folder(slurm_folder: Path) -> Iterator[Path]:
    """Of a cluster that is up."""
    require()
    place = slurm_folder / "c"
    up = virtual_cluster("up", "--folder", place)
    assert up.returncode == 0, up.stderr
    assert f"export SLURM_CONF={place}/slurm.conf" in up.stdout
    yield place
    virtual_cluster("down", "--folder", place)


@pytest.mark.slow
@pytest.mark.slurm
def test_it_outlives_its_command_and_takes_jobs_until_it_is_taken_down(folder: Path) -> None:
    assert "c[1-2]" in virtual_cluster("status", "--folder", folder).stdout
    again = virtual_cluster("up", "--folder", folder)
    assert (again.returncode, "is already up" in again.stdout) == (0, True)  # nothing to do
    bridge, known = bridge_of(folder), os.environ | {"SLURM_CONF": f"{folder}/slurm.conf"}
    ran = subprocess.run(["srun", "--nodes=2", "hostname"], env=known, capture_output=True, text=True)
    assert sorted(ran.stdout.split()) == ["c1", "c2"], ran.stderr
    subprocess.run(["sbatch", "--output=/dev/null", "--wrap=setsid sleep 67 & sleep 68"], env=known, check=True)
    down = virtual_cluster("down", "--folder", folder)
    assert (down.returncode, down.stderr) == (0, "")
    assert (of_cluster(folder), links(bridge), folder.exists()) == ([], [], False)
    again = virtual_cluster("down", "--folder", folder)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "no virtual cluster is up" in again.stderr


@pytest.mark.parametrize("name", ["bin/own.txt", "slurm.conf", f"{'long' * 20}/own.txt"])
def test_a_folder_with_files_of_others_is_left_as_it_is(slurm_folder: Path, name: str) -> None:
    require()
    (own := slurm_folder / "c" / name).parent.mkdir(parents=True)
    own.touch()
    refused = virtual_cluster("up", "--folder", own.parent if "long" in name else slurm_folder / "c")
    assert (refused.returncode, refused.stderr.count("\n"), own.exists()) == (1, 1, True)


def test_root_runs_nothing_from_a_folder_of_another_user(slurm_folder: Path) -> None:
    require()
    (slurm_folder / "c").mkdir()
    os.chown(slurm_folder / "c", 54321, -1)
    assert "belongs to another user (54321)" in virtual_cluster("up", "--folder", slurm_folder / "c").stderr


def test_jobs_share_nodes_but_those_that_are_given_whole() -> None:
    host, nodes = Host("n1", "127.0.0.1"), ("n1",)
    partitions = [Partition("shared", nodes), Partition("whole", nodes, whole_nodes=True)]
    text = slurm_conf(Path("cluster"), 16800, host, [(Node("n1"), host)], partitions)
    lines = [line for line in text.splitlines() if line.startswith("PartitionName")]
    assert ["OverSubscribe=EXCLUSIVE" in line for line in lines] == [False, True]
