"""A real, throw-away Slurm cluster of several virtual nodes on one Debian or Ubuntu machine. Needs root.

Every node lives in its own process, mount, network and host-name namespace: its own address and process numbers, its
own disk at /mnt/nodetmp (a job's part of it is $SLURM_TMPDIR), no way out of the cluster's network. So, as on a real
cluster, a rendezvous on localhost fails across nodes, and a process number means nothing on another node. The rest of
the file system is shared. Nothing outlives the process that started it, whatever ended that (see `namespaces.py`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from relay.chain import files, writers
from relay.virtual_cluster.namespaces import OWN_NETWORK, OWN_PROCESSES, Contained, Network, network
from relay.virtual_cluster.slurm_conf import Host, Node, Partition, gres_conf, slurm_conf

# What the cluster is made of: commands, and Debian's packages that have them.
PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge", "ip": "iproute2"}
SYSTEM_PATH = "/usr/sbin:/sbin"  # where the daemons are; not on every user's PATH
COMMANDS = ("srun", "sbatch", "salloc", "scancel", "scontrol", "squeue", "sinfo", "sattach", "sbcast", "strigger")
OF_AN_OUTER_SLURM = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_")
NODE_DISK = Path("/mnt/nodetmp")
FILES = ("slurm.conf", "gres.conf", "hosts")
PARTS = ("state", "spool", "log", "bin", "dev", "run")
NODES = (Node("c1"), Node("c2"), Node("g1", gpus=4), Node("g2", gpus=4))
PARTITIONS = (
    Partition("cpu", ("c1", "c2"), default=True),
    Partition("gpu", ("g1", "g2")),
    Partition("short", ("c1", "c2", "g1", "g2"), max_minutes=1),
)
MOUNT = "mount -t tmpfs -o mode=1777 tmpfs"


def obstacle(packages: Mapping[str, str] = PACKAGES) -> str:
    """Why no cluster can be made on this machine, and what to do; '' where one can. `packages`: command → package."""
    path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"
    if missing := [package for command, package in packages.items() if not shutil.which(command, path=path)]:
        names = " ".join(missing)
        return f"not installed: {names}; as root: apt-get install --no-install-recommends {names}"
    if os.geteuid():
        return "a virtual cluster needs root; use sudo"
    trial = subprocess.run([*OWN_PROCESSES, *OWN_NETWORK, "true"], check=False, capture_output=True, text=True)
    return f"namespaces are not allowed here: {trial.stderr.strip()}" if trial.returncode else ""


class VirtualCluster:
    """A cluster, up and idle inside its `with` block; its logs and configuration lie in `folder`.

    By default nodes c1, c2, and g1, g2 with 4 fake GPUs each; partitions cpu, gpu, and short (a minute).
    Raises `RuntimeError` where something cannot be started, `TimeoutError` where the nodes do not come up.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Node] = NODES,
        partitions: Sequence[Partition] = PARTITIONS,
    ) -> None:
        self.folder = folder.resolve()
        if len(str(self.folder)) > 70:
            raise ValueError(f"{self.folder}: longer than 70 characters, too long for the sockets in it")
        if len(nodes) > 60:
            raise ValueError(f"{len(nodes)} nodes: a virtual cluster has ports for 60")
        self.nodes, self.partitions = tuple(nodes), tuple(partitions)
        self._contained: dict[str, Contained] = {}
        self._controller = ("", 0)
        self._undo = ExitStack()

    # Its life

    def __enter__(self) -> VirtualCluster:
        with ExitStack() as undo:
            self._start(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._contained.clear()
        self._undo.close()

    def _start(self, undo: ExitStack) -> None:
        writers.make_own(self.folder)
        if unsafe := writers.unsafe_above(self.folder, own=1):  # root runs scripts from there
            raise RuntimeError(unsafe)
        there = {path.name for path in self.folder.iterdir()}
        if there and not {files.LOCK} <= there <= {files.LOCK, *FILES, *PARTS}:
            raise RuntimeError(f"{self.folder}: holds {min(there)}, which `down` would remove; name a new folder")
        try:
            lock, _ = files.exclusive(self.folder, 0)
        except files.HeldError:
            raise RuntimeError(f"{self.folder}: another virtual cluster is up in this folder") from None
        undo.callback(lock.close)
        lock.truncate(0)
        lock.write(str(os.getpid()))  # for `down`
        lock.flush()
        net = undo.enter_context(network())
        self._lay_out(net, undo)
        run = self.folder / "run"
        own = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        # --force: that it is root, and that others may look into its folder, is only remarked upon
        munged = ["munged", "--foreground", "--force", *(f"--{option}={run / name}" for option, name in own.items())]
        self._contain(undo, "munged", munged).go()
        self._contain(undo, "slurmctld", ["slurmctld", "-D", "-f", f"{self.folder}/slurm.conf"]).go()
        for index, node in enumerate(self.nodes):
            self._boot(undo, net, index, node.name)
        self.wait_until_idle(60)

    def _lay_out(self, net: Network, undo: ExitStack) -> None:
        """All that is in the folder, made anew: no queued job and no drained node of an earlier cluster."""
        for name in PARTS:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "run" / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        devices = self.folder / "dev"
        undo.callback(shutil.rmtree, devices, ignore_errors=True)
        for index in range(max((node.gpus for node in self.nodes), default=0)):
            # Slurm insists on a device: a twin of /dev/null.
            os.mknod(devices / f"gpu{index}", 0o20666, os.makedev(1, 3))
        self._configure(net, devices)
        for name in COMMANDS:
            # Snakemake's job step removes SLURM_CONF from the environment.
            program = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
            conf = shlex.quote(f"{self.folder}/slurm.conf")
            self._script(name, f'SLURM_CONF={conf} exec {program} "$@"')
        self._script("task_prolog", f'd={NODE_DISK}/job$SLURM_JOB_ID; mkdir -p "$d"; echo export SLURM_TMPDIR="$d"')
        self._script("epilog", f'rm -rf {NODE_DISK}/job"$SLURM_JOB_ID"')

    def _configure(self, net: Network, devices: Path) -> None:
        controller = Host(socket.gethostname().partition(".")[0], net.gateway)
        hosts = [Host(node.name, net.address(index)) for index, node in enumerate(self.nodes)]
        port = 16800 + 64 * net.number
        self._controller = (controller.address, port)
        nodes = list(zip(self.nodes, hosts, strict=True))
        text = slurm_conf(self.folder, port, controller, nodes, self.partitions)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(gres_conf(devices, self.nodes))
        all_hosts = [Host("localhost", "127.0.0.1"), Host("login", net.gateway), *hosts]
        (self.folder / "hosts").write_text("".join(f"{host.address} {host.name}\n" for host in all_hosts))

    def _boot(self, undo: ExitStack, net: Network, index: int, name: str) -> None:
        """A node: its first process makes what is its own, then watches over slurmd; with either, all of it ends."""
        (self.folder / "spool" / name).mkdir()
        folder = shlex.quote(str(self.folder))
        script = f"set -e; mkdir -p {NODE_DISK}; {MOUNT} {NODE_DISK}; {MOUNT} /dev/shm\n"
        script += f"hostname {name}; mount --bind {folder}/hosts /etc/hosts; {net.settle(index)}\n"
        script += f"slurmd -D -f {folder}/slurm.conf -N {name} & wait $!"
        node = self._contain(undo, name, ["sh", "-c", script], own_network=True)
        net.plug_in(index, node, undo)
        node.go()

    def _contain(self, undo: ExitStack, name: str, command: list[str], *, own_network: bool = False) -> Contained:
        environment = self.environment | {"SLURM_CONF": f"{self.folder}/slurm.conf"}
        contained = Contained(command, self.folder / "log" / f"{name}.out", environment, network=own_network)
        undo.callback(contained.end)
        self._contained[name] = contained
        return contained

    def _script(self, name: str, line: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    # Its use

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command on the login node, which is this machine: Slurm's commands first on PATH."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_AN_OUTER_SLURM)}
        return kept | {"PATH": f"{self.folder}/bin:{kept.get('PATH', os.defpath)}:{SYSTEM_PATH}"}

    def run(self, *command: str | Path, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node: captured, as text, at most 120 s; `options` are those of `subprocess.run`.

        `env` adds to the cluster's environment. Raises `RuntimeError` with the output where `check` finds a failure.
        """
        streams = {} if {"stdout", "stderr"} & set(options) else {"capture_output": True}
        options = {"text": True, "timeout": 120, **streams, **options, "env": self.environment | options.get("env", {})}
        done = subprocess.run([str(word) for word in command], check=False, **options)
        if check and done.returncode:
            raise RuntimeError(f"{shlex.join(done.args)}: status {done.returncode}\n{done.stdout}{done.stderr or ''}")
        return done

    def wait_until_idle(self, timeout: float = 60) -> None:
        """Until every node is idle and no job is queued.

        Raises `TimeoutError`, or `RuntimeError` where a daemon has ended, with what Slurm and its logs say.
        """
        end = time.monotonic() + timeout
        while not self._idle():
            if time.monotonic() > end:
                raise TimeoutError(f"the cluster is not idle after {timeout} s\n{self._condition()}")
            time.sleep(0.1)

    def _idle(self) -> bool:
        if ended := [name for name, daemon in self._contained.items() if daemon.ended()]:
            raise RuntimeError(f"{', '.join(ended)} ended\n{self._condition()}")
        if not self._controller_listens():
            return False
        try:
            states = self.run("sinfo", "--noheader", "--Node", "--format=%N %t", check=False, timeout=10)
            queue = self.run("squeue", "--noheader", check=False, timeout=10)
        except subprocess.TimeoutExpired:
            return False
        idle = {line.removesuffix(" idle") for line in states.stdout.splitlines() if line.endswith(" idle")}
        return idle == {node.name for node in self.nodes} and queue.returncode == 0 and not queue.stdout.strip()

    def _controller_listens(self) -> bool:
        """Slurm's own commands try again for a minute and longer where it does not."""
        try:
            with socket.create_connection(self._controller, timeout=5):
                return True
        except OSError:
            return False

    def _condition(self) -> str:
        """What Slurm and the ends of its logs say."""
        commands = (("sinfo", "--Node", "--long"), ("squeue",)) if self._controller_listens() else ()
        answers = [self.run(*command, check=False) for command in commands]
        lines = [f"{done.stdout}{done.stderr}" for done in answers]
        for log in sorted((self.folder / "log").iterdir()):
            lines += [f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines()[-5:]]
        return "\n".join(lines)
