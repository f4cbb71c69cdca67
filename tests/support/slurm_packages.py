"""What the Slurm tests need on this machine: installed from Debian's packages where it is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import debian_packages

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge", "ip": "iproute2"}
NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child", "--pid", "--mount-proc", "--net", "--uts")


def require(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install missing `packages` (command → package) or skip the test, with a warning, where that is impossible."""
    if what := obstacle(packages):
        debian_packages.skip(f"the Slurm tests were NOT run: {what}")


def obstacle(packages: Mapping[str, str] = PACKAGES) -> str:
    """Install missing packages; returns what stands in the way of a mini cluster, or nothing."""
    if os.geteuid():
        return "a mini cluster needs root"
    if what := debian_packages.obstacle(packages):
        return what
    trial = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {trial.stderr.strip()}" if trial.returncode else ""
