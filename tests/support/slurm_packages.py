"""What the Slurm tests need on this machine: installed from Debian's packages where it is missing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge", "ip": "iproute2"}
NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child", "--pid", "--mount-proc", "--net", "--uts")
LOCK = Path(tempfile.gettempdir()) / "torch-relay-apt.lock"
POLICY = Path("/usr/sbin/policy-rc.d")
REFUSAL = "#!/bin/sh\n# torch-relay: no packaged daemon starts while packages are installed\nexit 101\n"


def require(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install missing `packages` (command → package) or skip the test, with a warning, where that is impossible."""
    import pytest  # here alone: `python tests/support/mini_slurm.py` does without it

    if what := obstacle(packages):
        message = f"the Slurm tests were NOT run: {what}"
        warnings.warn(pytest.PytestWarning(message), stacklevel=2)
        pytest.skip(message)


def obstacle(packages: Mapping[str, str] = PACKAGES) -> str:
    """Install missing packages; returns what stands in the way of a mini cluster, or nothing."""
    if os.geteuid():
        return "a mini cluster needs root"
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [package for command, package in packages.items() if not shutil.which(command)]
        if missing and not shutil.which("apt-get"):
            return f"{', '.join(missing)} not installed, and there is no apt-get here"
        if missing and (fault := _install(missing)):
            return f"apt-get install {' '.join(missing)} failed: {fault}"
    trial = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {trial.stderr.strip()}" if trial.returncode else ""


def _install(packages: list[str]) -> str:
    """The end of what apt-get complained of, or nothing."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    install = ["apt-get", "install", *wait, "--yes", "--no-install-recommends", *packages]
    with _no_daemon_starts():
        # One unreachable source must not hide that the others serve; the installation tells.
        subprocess.run(["apt-get", "update", *wait], capture_output=True, env=environment)
        done = subprocess.run(install, capture_output=True, text=True, env=environment)
    return done.stderr.strip()[-300:] or f"status {done.returncode}" if done.returncode else ""


@contextmanager
def _no_daemon_starts() -> Iterator[None]:
    """Packages start their daemons unless Debian's policy-rc.d refuses; the machine's own policy is put back."""
    own = (POLICY.read_text(), POLICY.stat().st_mode) if POLICY.exists() else None
    POLICY.write_text(REFUSAL)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
        if own and own[0] != REFUSAL:  # else left behind by a killed installation
            POLICY.write_text(own[0])
            POLICY.chmod(own[1] & 0o7777)
