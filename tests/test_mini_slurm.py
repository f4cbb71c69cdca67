"""The mini cluster itself: its nodes are apart, its Slurm is real, and nothing of it stays."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from mini_slurm import MiniSlurm, Node, Partition, require
from newer_slurm import VERSION_VARIABLE

TESTS = Path(__file__).parent
SUPPORT = TESTS / "support"
TWO = [Node("n1", cpus=2, memory_mb=1000), Node("n2", cpus=2, memory_mb=1000)]
ALL = [Partition("all", ("n1", "n2"), default=True)]

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


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_slurm_is_the_one_asked_for(cluster: MiniSlurm) -> None:
    version = cluster.run("sinfo", "--version").stdout
    assert version.startswith(f"slurm-wlm {os.environ.get(VERSION_VARIABLE, '')}")
    assert cluster.node_namespace_run("g1", "slurmd", "-V").stdout == version


def test_nodes_have_names_and_addresses_of_their_own(cluster: MiniSlurm) -> None:
    seen = on_each_node(cluster, "ip -4 -o address show eth0 | awk '{print $4}'; getent hosts c1; getent hosts c2")
    assert list(seen) == ["c1", "c2"]
    (first, *names), (second, *same_names) = seen.values()
    assert first != second
    assert names == same_names  # and either node finds the other by its name
    assert [line.split() for line in names] == [[first.split("/")[0], "c1"], [second.split("/")[0], "c2"]]


def test_nothing_is_reached_from_a_node_but_the_cluster(cluster: MiniSlurm) -> None:
    seen = on_each_node(cluster, "ip route; ip -6 route show default")
    for routes in seen.values():
        assert [route.split()[2] for route in routes] == ["eth0"], routes
        assert "default" not in routes[0]
    connect = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    refused = cluster.node_namespace_run("c1", sys.executable, "-c", connect, check=False)
    assert "Network is unreachable" in refused.stderr


def test_a_port_on_localhost_is_not_another_nodes(cluster: MiniSlurm) -> None:
    listening = "import socket; s = socket.create_server(('127.0.0.1', 29500)); print('up', flush=True); s.accept()"
    command = [*cluster._contained["c1"].enter(), sys.executable, "-c", listening]
    connect = "import socket; socket.create_connection(('127.0.0.1', 29500), timeout=5)"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout
            assert listener.stdout.readline() == "up\n"
            elsewhere = cluster.node_namespace_run("c2", sys.executable, "-c", connect, check=False)
            assert "Connection refused" in elsewhere.stderr
            cluster.node_namespace_run("c1", sys.executable, "-c", connect)
            assert listener.wait(10) == 0
        finally:
            listener.kill()


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


def test_slurm_hands_out_gpus(cluster: MiniSlurm) -> None:
    shape = ("--partition=gpu", "--gpus-per-node=2", "--cpus-per-task=3")
    seen = on_each_node(cluster, "echo $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK", *shape)
    assert seen == {"g1": ["0,1 3"], "g2": ["0,1 3"]}
    refused = cluster.run("srun", "--partition=gpu", "--gpus-per-node=5", "true", check=False)
    assert refused.returncode
    assert "Requested node configuration is not available" in refused.stderr


def test_a_job_is_told_as_slurm_saw_it(cluster: MiniSlurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    submit = ("sbatch", "--parsable", "--job-name=of two words", "--comment=a=b C=d", "--nodes=2", "--ntasks=4")
    job_id = cluster.run(*submit, "--mem=300", "--time=7", script, cwd=tmp_path).stdout.strip()
    assert within(10, lambda: cluster.job(job_id)["JobState"] == "RUNNING")
    job = cluster.job(job_id)
    assert (job["JobName"], job["NumNodes"], job["NumTasks"]) == ("of two words", "2", "4")
    assert (job["MinMemoryNode"], job["TimeLimit"], job["NodeList"]) == ("300M", "00:07:00", "c[1-2]")
    assert cluster.jobs()[-1].keys() == job.keys()
    assert cluster.jobs()[-1]["JobId"] == job_id
    assert within(10, lambda: any("sleep 60" in line for line in cluster.processes("c1").values()))
    with pytest.raises(RuntimeError, match="Invalid job id"):
        cluster.job(999_999)


@pytest.mark.slow
def test_a_job_is_over_once_its_nodes_are_cleared(cluster: MiniSlurm) -> None:
    """Not when `sbatch --wait` returns."""
    epilog = cluster.folder / "bin" / "epilog"
    usual = epilog.read_text()
    epilog.write_text(f"{usual}sleep 2\n")
    try:
        job = cluster.run("sbatch", "--parsable", "--wait", "--output=/dev/null", "--wrap=true").stdout.strip()
        assert cluster.job(job)["JobState"] == "COMPLETING"
        assert cluster.ended(job)["JobState"] == "COMPLETED"
        with pytest.raises(TimeoutError, match=r"not over after 0 s: .*PENDING"):
            cluster.ended(cluster.run("sbatch", "--parsable", "--hold", "--wrap=true").stdout.strip(), 0)
    finally:
        epilog.write_text(usual)


def test_the_next_test_finds_an_idle_cluster(cluster: MiniSlurm) -> None:
    """The one before left a job behind."""
    assert not cluster.run("squeue", "--noheader").stdout
    cluster.run("sbatch", "--output=/dev/null", "--wrap=setsid sleep 61 & sleep 62", "--no-requeue")
    assert within(10, lambda: len(cluster.processes("c1")) >= 3)
    cluster.set_node("c1", "down")
    assert within(10, lambda: cluster.jobs()[-1]["JobState"] == "NODE_FAIL")
    with pytest.raises(TimeoutError, match=r"not idle after 0\.5 s[\s\S]*down"):
        cluster.wait_until_idle(0.5)
    cluster.tidy()
    assert within(10, lambda: cluster.processes("c1") == {})


def test_a_minute_is_all_that_short_allows(cluster: MiniSlurm) -> None:
    refused = cluster.run("sbatch", "--partition=short", "--time=2", "--wrap=true", check=False)
    assert "time limit" in refused.stderr


@pytest.mark.long
def test_snakemakes_plugin_sees_the_end_of_a_job_at_once(cluster: MiniSlurm, tmp_path: Path) -> None:
    rule = """rule all:
        output: "host"
        params: "exit 3" if config.get("fail") else "true"
        resources: nodes=2, tasks=2, mpi="srun", runtime=1, mem_mb=100, slurm_partition="cpu"
        shell: "srun --nodes=2 --ntasks=2 hostname | sort > {output}; {params}"
    """
    (tmp_path / "Snakefile").write_text(rule)
    command = [sys.executable, SUPPORT / "fast_snakemake.py", "--executor=slurm", "--jobs=1", "--directory", tmp_path]
    command += ["--slurm-status-command=squeue", "--slurm-init-seconds-before-status-checks=1", "--slurm-no-account"]
    command += ["--snakefile", tmp_path / "Snakefile"]
    before = {job["JobId"] for job in cluster.jobs()}  # Slurm forgets the oldest ones meanwhile
    cluster.run(*command)
    ended = datetime.fromisoformat(cluster.jobs()[-1]["EndTime"]).timestamp()
    assert time.time() - ended < 30  # the plugin's own first look is after 40 s
    assert (tmp_path / "host").read_text().split() == ["c1", "c2"]
    failed = cluster.run(*command, "--forceall", "--config", "fail=1", check=False)
    assert failed.returncode == 1, failed.stderr
    new = [job["JobState"] for job in cluster.jobs() if job["JobId"] not in before]
    assert new == ["COMPLETED", "FAILED"]


@pytest.mark.slow
def test_nothing_stays_after_an_exception(slurm_folder: Path) -> None:
    require()
    folder = slurm_folder

    def interrupted() -> None:
        with MiniSlurm(folder, [Node("n1", gpus=1), Node("n2")], ALL) as cluster:
            cluster.run("sbatch", "--output=/dev/null", "--nodes=2", "--wrap=setsid sleep 63 & srun sleep 64")
            assert within(10, lambda: any("sleep 63" in line for line in cluster.processes("n1").values()))
            assert len(links(bridge_of(folder))) == 3
            assert len(of_cluster(folder)) > 5
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert of_cluster(folder) == []
    assert links(bridge_of(folder)) == []


def test_a_cluster_that_cannot_start_leaves_nothing(slurm_folder: Path) -> None:
    require()
    folder = slurm_folder
    broken = MiniSlurm(folder, TWO, [Partition("all", ("n1", "nobody"))])
    with pytest.raises(RuntimeError, match=r"slurmctld ended[\s\S]*nobody"), broken:
        pass
    assert of_cluster(folder) == []
    assert links(bridge_of(folder)) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_leaves_nothing(how: signal.Signals, slurm_folder: Path) -> None:
    require()
    folder = slurm_folder
    program = f"""if True:
        import sys, time
        from pathlib import Path
        sys.path[:0] = [{str(TESTS)!r}, {str(SUPPORT)!r}, {str(TESTS.parent / "scripts")!r}]
        from test_mini_slurm import ALL, TWO, MiniSlurm
        with MiniSlurm(Path({str(folder)!r}), TWO, ALL) as cluster:
            cluster.run("sbatch", "--output=/dev/null", "--nodes=2", "--wrap=setsid sleep 65 & srun sleep 66")
            print("up", flush=True)
            time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout
            assert owner.stdout.readline() == "up\n"
            with pytest.raises(RuntimeError, match="another virtual cluster is up"), MiniSlurm(folder, TWO, ALL):
                pass
        finally:
            owner.send_signal(how)
    left = links(bridge_of(folder))
    assert within(10, lambda: not links(bridge_of(folder))), left
    assert within(10, lambda: not [line for line in of_cluster(folder) if not line.startswith(str(folder))])
    with MiniSlurm(folder, TWO, ALL) as cluster:  # in the same folder
        assert cluster.jobs() == []
        assert list(on_each_node(cluster, "true; echo")) == ["n1", "n2"]


def test_two_clusters_are_up_at_once(cluster: MiniSlurm, slurm_folder: Path) -> None:
    with MiniSlurm(slurm_folder, TWO, ALL) as other:
        assert bridge_of(other.folder) != bridge_of(cluster.folder)
        assert list(on_each_node(other, "echo")) == ["n1", "n2"]
        assert list(on_each_node(cluster, "echo")) == ["c1", "c2"]


def test_without_namespaces_nodes_share_the_machine(slurm_folder: Path) -> None:
    require()
    with MiniSlurm(slurm_folder, TWO, ALL, namespaces=False) as cluster:
        printed = cluster.run("srun", "--nodes=2", "sh", "-c", "echo $(hostname) $SLURMD_NODENAME").stdout
        host = os.uname().nodename
        assert sorted(printed.splitlines()) == [f"{host} n1", f"{host} n2"]


def test_mistakes_in_asking_for_a_cluster(slurm_folder: Path) -> None:
    with pytest.raises(ValueError, match="longer than 70 characters"):
        MiniSlurm(slurm_folder / ("x" * 70), TWO, ALL)
    with pytest.raises(ValueError, match="61 nodes"):
        MiniSlurm(slurm_folder, [Node(f"n{index}") for index in range(61)], ALL)
