"""The tests' cluster: the virtual one that users have (`relay.virtual_cluster`), with what tests ask of it."""

import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import debian_packages
from relay.virtual_cluster import cluster
from relay.virtual_cluster.cluster import NODE_DISK, PACKAGES, VirtualCluster
from relay.virtual_cluster.slurm_conf import Node, Partition

__all__ = ["NODE_DISK", "UNFINISHED", "MiniSlurm", "Node", "Partition", "require"]
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING")


def require(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install missing `packages` (command → package) or skip the test, with a warning, where that is impossible."""
    what = "a virtual cluster needs root" if os.geteuid() else ""
    if what := what or debian_packages.obstacle(packages) or cluster.obstacle(packages):
        debian_packages.skip(f"the Slurm tests were NOT run: {what}")


class MiniSlurm(VirtualCluster):
    """A virtual cluster whose jobs and processes can be looked at, and whose nodes can fail."""

    def jobs(self) -> list[dict[str, str]]:
        """All jobs that Slurm remembers (ended ones: 10 minutes), oldest first: the fields of `scontrol show job`."""
        lines = self.run("scontrol", "show", "job", "--oneliner").stdout.splitlines()
        return sorted(map(_fields, filter(_fields, lines)), key=lambda job: int(job["JobId"]))

    def job(self, job_id: int | str) -> dict[str, str]:
        """The fields of one job. Raises `RuntimeError` where Slurm does not know it."""
        return _fields(self.run("scontrol", "show", "job", "--oneliner", str(job_id)).stdout)

    def ended(self, job_id: int | str, timeout: float = 60) -> dict[str, str]:
        """The fields of a job once it is over. `sbatch --wait` returns earlier: its nodes are then still cleared.

        Raises `TimeoutError` where it is not over in time.
        """
        end = time.monotonic() + timeout
        while (job := self.job(job_id))["JobState"] in UNFINISHED:
            if time.monotonic() > end:
                raise TimeoutError(f"the job is not over after {timeout} s: {job}")
            time.sleep(0.1)
        return job

    def processes(self, node: str) -> dict[int, str]:
        """What runs on a node but for Slurm's daemons: command lines by this machine's process numbers."""
        first = self._contained[node].first
        inside = _namespace(first)
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        lines = {pid: _command_line(pid) for pid in pids if pid != first and _namespace(pid) == inside}
        return {pid: line for pid, line in lines.items() if not line.startswith("slurm")}

    def set_node(self, name: str, state: str) -> None:
        """`down`: the node fails, and its jobs with it; `drain`: it takes no more jobs; `resume`: it is back."""
        self.run("scontrol", "update", f"nodename={name}", f"state={state}", "reason=test")

    def tidy(self, timeout: float = 90) -> None:
        """Make it as new, but for the jobs that it remembers: nothing queued, nodes idle, no process left there."""
        if not self._idle():
            self.run("scancel", "--quiet", "--user=root", check=False)
            for node in self.nodes:
                self.run("scontrol", "update", f"nodename={node.name}", "state=resume", check=False)
        self.wait_until_idle(timeout)
        for node in self.nodes:
            for pid in self.processes(node.name):  # Slurm without cgroups loses sight of daemons
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _fields(line: str) -> dict[str, str]:
    """`Key=value Key=value …`, where a value may hold spaces and equals signs."""
    return dict(pair.split("=", 1) for pair in re.split(r" +(?=[A-Z][A-Za-z_:/]*=)", line.strip()) if "=" in pair)


def _namespace(pid: int) -> str | None:
    """The process namespace that a process is in; nothing when it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
