"""Installs the wheels of a wheelhouse with uv, which checks every hash, into a new virtual environment."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.environments import pip
from relay.environments.node_folder import HERE

# Wheels of torch unpack to up to four times their size. uv links the files from its cache, so they count once.
UNPACKED = 4


def install(wheels: Path, requirements: Path, python: Path, place: Path, locks: Sequence[int] = ()) -> None:
    """Make a virtual environment of `python` at `place`, with exactly the wheels that `requirements` name.

    `wheels` is their folder. The installer inherits the descriptors `locks`.
    uv's cache is on the same disk, so that files are linked and not copied. It is removed afterwards, because cleaners
    of /tmp delete single files, and a cache with missing files would give broken environments.
    Raises UserError for a disk that is too small, and for a failed installation.
    """
    needed = UNPACKED * sum(wheel.stat().st_size for wheel in wheels.glob("*.whl"))
    free = shutil.disk_usage(place.parent).free
    if free < needed:
        sizes = f"{free / 1e9:.1f} GB are free {HERE}, {needed / 1e9:.1f} GB are needed"
        raise UserError(
            f"node_disk: {place.parent.parent} is too small: {sizes}; name another folder in the site's file"
        )
    uv, cache = program(), place.with_name(f"{place.name}.uv")
    quietly = ["--quiet", "--no-config", "--offline", "--cache-dir", str(cache)]
    try:
        run([uv, "venv", *quietly, "--no-project", "--python", str(python), str(place)], locks, place=place)
        exactly = ["--no-index", "--find-links", str(wheels), "--require-hashes", "--no-build"]
        into = ["--python", str(place / "bin" / "python")]
        run([uv, "pip", "install", *quietly, *into, *exactly, "--requirement", str(requirements)], locks, place=place)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def program() -> str:
    """The path of uv: the one beside the driver's Python, or else the one on PATH. Raises UserError without either."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise UserError(f"uv is not beside {sys.executable}, nor on the PATH: run `make install`")
    return uv


def run(command: Sequence[str], locks: Sequence[int] = (), *, place: Path) -> None:
    """Run one step of the installation of `place`. Raises UserError with the step's own words where it fails.

    The step inherits the descriptors `locks`. If it outlives this process, other jobs therefore still wait for it.
    """
    where = f"the environment {place} could not be made {HERE}"
    try:
        how: dict[str, Any] = {"env": pip.environment(), "pass_fds": locks, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **how)
    except OSError as error:
        raise UserError(f"{where}: {command[0]}: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).splitlines()
        pips = any(line.startswith("ERROR:") for line in said)
        raise UserError(f"{where}: {pip.complaint(said) if pips else ' '.join(' '.join(said).split())[-600:]}")
