"""The mini cluster itself: its nodes are apart, its Slurm is real, and nothing of it stays."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from mini_slurm import MiniSlurm
from newer_slurm import VERSION_VARIABLE

pytestmark = pytest.mark.slurm


def on_each_node(cluster: MiniSlurm, script: str, *options: str) -> dict[str, list[str]]:
    """The lines that a shell script prints in a task on each of two nodes, by host name."""
    printed = cluster.run(
        "srun", "--nodes=2", "--ntasks=2", *options, "sh", "-c", f"{{ {script}; }} | sed s/^/$(hostname):/"
    )
    lines = [line.split(":", 1) for line in printed.stdout.splitlines()]
    return {host: [text for name, text in lines if name == host] for host in dict(sorted(lines))}


def of_cluster(folder: Path) -> list[str]:
    """What is left of a cluster: processes with its configuration, mounts with its files, its bridge's ports."""
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    left = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes().split(b"\0"):
                left.append(environment.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    return left + [str(device) for device in (folder / "dev").glob("*")]


def links(bridge: str) -> list[str]:
    return [name for _, name in socket.if_nameindex() if re.fullmatch(rf"{bridge}(n\d+)?", name)]


def bridge_of(folder: Path) -> str:
    address = re.search(r"SlurmctldHost=\S+\(10\.213\.(\d+)\.254\)", (folder / "slurm.conf").read_text())
    assert address
    return f"relay{address[1]}"


def test_slurm_is_the_one_asked_for(cluster: MiniSlurm) -> None:
    version = cluster.run("sinfo", "--version").stdout
    assert version.startswith(f"slurm-wlm {os.environ.get(VERSION_VARIABLE, '')}")
    assert cluster.node_namespace_run("g1", "slurmd", "-V").stdout == version


def test_a_jobs_disk_is_its_nodes_own_and_ends_with_it(cluster: MiniSlurm) -> None:
    before = cluster.node_namespace_run("c1", "ls", "/mnt/nodetmp").stdout  # what other tests' jobs keep on the node
    seen = on_each_node(
        cluster, 'hostname > "$SLURM_TMPDIR/mine"; cat "$SLURM_TMPDIR"/*; df --output=fstype /mnt/nodetmp'
    )
    assert {host: lines[0] for host, lines in seen.items()} == {"c1": "c1", "c2": "c2"}
    assert {lines[-1] for lines in seen.values()} == {"tmpfs"}
    cluster.wait_until_idle()
    assert cluster.node_namespace_run("c1", "ls", "/mnt/nodetmp").stdout == before
    assert not list(Path("/mnt/nodetmp").glob("job*"))
