"""What tests need of this machine besides Python: installed from Debian's packages where it is missing."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

#: What compiled packages and the C++ program are built with; a name with a slash is a file.
BUILDING = {"g++": "g++", "make": "make", "cmake": "cmake", "ninja": "ninja-build"}
BUILDING |= {"/usr/include/libaio.h": "libaio-dev"}
LOCK = Path(tempfile.gettempdir()) / "torch-relay-apt.lock"
POLICY = Path("/usr/sbin/policy-rc.d")
REFUSAL = "#!/bin/sh\n# torch-relay: no packaged daemon starts while packages are installed\nexit 101\n"


def require(packages: Mapping[str, str] = BUILDING) -> None:
    """Install missing `packages` (program or file → package), or skip the test with a warning if that is impossible."""
    if what := obstacle(packages):
        skip(f"tests that build were NOT run: {what}")


def skip(message: str) -> NoReturn:
    """Skip the test, with a warning."""
    warnings.warn(pytest.PytestWarning(message), stacklevel=3)
    pytest.skip(message)


def obstacle(packages: Mapping[str, str]) -> str:
    """Install missing packages; returns why that is impossible, or nothing."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [package for wanted, package in packages.items() if not _has(wanted)]
        if not missing:
            return ""
        if os.geteuid() or not shutil.which("apt-get"):
            why = "only root installs packages" if os.geteuid() else "there is no apt-get here"
            return f"{', '.join(missing)} not installed, and {why}"
        fault = _install(missing)
        return f"apt-get install {' '.join(missing)} failed: {fault}" if fault else ""


def _has(wanted: str) -> bool:
    return Path(wanted).exists() if "/" in wanted else shutil.which(wanted) is not None


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
