"""A further stack on a machine without a scheduler: what its lock has beside the driver's own environment.

The driver's environment has torch already, gigabytes in some builds. So a further stack is a virtual environment of its
own that also sees the driver's packages. All locks agree with the driver's, so that nothing is there in two versions.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import sysconfig
from functools import partial
from importlib.metadata import distributions, version
from pathlib import Path

from relay.base.errors import UserError
from relay.environments import built, installer, pip, versioned
from relay.environments.locks import exactly, without
from relay.environments.recipes import RECIPES

DRIVERS = "torch"  # the stack that the driver's own environment has
SEES_DRIVER = "relay_driver.pth"


def place(lock: Path) -> Path | None:
    """Where a lock's environment is, or will be; None for the stack that the driver's own environment has.

    The name is a digest of the lock, of how its packages are built, and of the environment beneath: of what that has of
    the lock, too, for an update of the driver's may take away a package that a stack has from there.
    """
    if lock.stem == DRIVERS or not lock.is_file():
        return None
    text = lock.read_text(encoding="utf-8")
    recipes = [repr(RECIPES[name]) for name in built.entries(text)]
    parts = [text, without(text, _not_fetched), recipes, sys.version, str(Path(sys.prefix).resolve()), version("torch")]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    return built.cache() / "environments" / f"{lock.stem}-{digest}"


def interpreter(link: Path) -> str:
    """The Python of an environment, which is kept as long as this process lives.

    Raises UserError where it was not made, or is gone.
    """
    python = versioned.interpreter(link)
    if python is None:
        raise UserError(f"no environment at {link}; have it made: `snakemake --forcerun environment`")
    return python


def make(lock: Path, arch_list: str | None = None) -> Path:
    """Make a lock's environment unless it is there with every file, and return its place.

    `arch_list` is what CUDA code is built for (`built.wheel`).
    Raises UserError where a package can neither be fetched nor built.
    """
    link = place(lock)
    assert link is not None, "the driver's own environment is made by `make install`"
    install = partial(_install, lock, arch_list)
    with built.in_the_cache():
        versioned.have(link, install, stack=lock.stem, parts=_optional_parts(lock))
    return link


def _optional_parts(lock: Path) -> list[str]:
    """The optional headers that this machine has, for the packages that are built for a lock.

    They are no part of the environment's name, which the planner needs on machines of all kinds.
    """
    return [part for name in built.entries(lock.read_text("utf-8")) for part in built.optional(RECIPES[name])]


def site_packages(environment: Path) -> Path:
    """The folder of an environment's own packages."""
    return next(environment.glob("lib/python3*/site-packages"))


def _install(lock: Path, arch_list: str | None, folder: Path, held: int) -> None:
    """Install what the driver's environment lacks: wheels with the lock's hashes, then what has to be built."""
    text = lock.read_text(encoding="utf-8")
    installer.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], [held], place=folder)
    drivers = Path(sysconfig.get_path("purelib")).resolve()  # not through a link, which may be gone later
    (site_packages(folder) / SEES_DRIVER).write_text(f"{drivers}\n", encoding="utf-8")
    python = folder / "bin" / "python"
    wanted = folder / "wanted.txt"
    wanted.write_text(exactly(without(text, _not_fetched)), encoding="utf-8")
    checked = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(wanted)]
    if wanted.stat().st_size:
        print(f"Fetching what stack {lock.stem} needs beside the driver's environment", flush=True)
        if words := pip.run(python, "install", *checked, locks=[held]):
            raise UserError(f"the environment {folder} could not be made: {words}")
    build = "cpu" if version("torch").endswith("+cpu") else "cuda"
    for entry in built.entries(text).values():
        wheel = built.wheel(entry, python, build, arch_list)
        installer.run([*pip.program(python), "install", "--quiet", "--no-deps", str(wheel)], [held], place=folder)
    _check(lock, python)


def _not_fetched(name: str, pinned: str) -> bool:
    """Whether a package is built here, or is there: in the driver's environment, perhaps as a build with a label."""
    if name in RECIPES:
        return True
    drivers = distributions(name=name, path=[sysconfig.get_path("purelib")])
    return any(distribution.version.partition("+")[0] == pinned for distribution in drivers)


def _check(lock: Path, python: Path) -> None:
    """Raise UserError unless what was built can be imported: its compiled parts fit this torch."""
    for name in built.entries(lock.read_text(encoding="utf-8")):
        tried = RECIPES[name].tried
        done = subprocess.run([str(python), "-P", "-c", tried], check=False, capture_output=True, text=True)
        if done.returncode:
            raise UserError(
                f"{name} was built, and `{tried}` fails: {done.stderr.strip().rpartition(chr(10))[2][:300]}"
            )
