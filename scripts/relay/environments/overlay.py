"""A further stack on a machine without a scheduler: what its lock has beside the driver's own environment.

The driver's environment has torch already, gigabytes in some builds. So a further stack is a virtual environment of its
own that also sees the driver's packages. All locks agree with the driver's, so that nothing is there in two versions.
"""

import hashlib
import json
import sys
import sysconfig
from functools import partial
from importlib.metadata import distributions, version
from pathlib import Path

from relay.base.errors import UserError
from relay.environments import built, installer, kept, pip, versioned
from relay.environments.locks import Pin, exactly, read, text_of
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
    recipes = [repr(RECIPES[pin.name]) for pin in to_build(lock)]
    beneath = [sys.version, str(Path(sys.prefix).resolve()), version("torch")]
    parts = [text_of(read(lock)), exactly(_to_fetch(lock)), recipes, beneath]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    return kept.cache() / "environments" / f"{lock.stem}-{digest}"


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
    with kept.usable(link.parent):
        versioned.have(link, install, stack=lock.stem, parts=_optional_parts(lock))
    return link


def _optional_parts(lock: Path) -> list[str]:
    """The optional headers that this machine has, for the packages that are built for a lock.

    They are no part of the environment's name, which the planner needs on machines of all kinds.
    """
    return [part for pin in to_build(lock) for part in built.optional(RECIPES[pin.name])]


def _install(lock: Path, arch_list: str | None, folder: Path, held: int) -> None:
    """Install what the driver's environment lacks: wheels with the lock's hashes, then what has to be built."""
    installer.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], [held], place=folder)
    drivers = Path(sysconfig.get_path("purelib")).resolve()  # not through a link, which may be gone later
    (versioned.site_packages(folder) / SEES_DRIVER).write_text(f"{drivers}\n", encoding="utf-8")
    python = folder / "bin" / "python"
    wanted = folder / "wanted.txt"
    wanted.write_text(exactly(_to_fetch(lock)), encoding="utf-8")
    into = pip.into(folder)
    checked = [*into, "--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(wanted)]
    if wanted.stat().st_size:
        print(f"Fetching what stack {lock.stem} needs beside the driver's environment", flush=True)
        if words := pip.run(python, "install", *checked, locks=[held]):
            raise UserError(f"the environment {folder} could not be made: {words}")
    build = "cpu" if version("torch").endswith("+cpu") else "cuda"
    for pin in to_build(lock):
        wheel = built.wheel(pin, python, build, arch_list)
        installed = [*pip.program(python), "install", *into, "--quiet", "--no-deps", str(wheel)]
        installer.run(installed, [held], place=folder)


def to_build(lock: Path) -> list[Pin]:
    """The packages of a lock that are built here."""
    return [pin for pin in read(lock) if pin.name in RECIPES]


def _to_fetch(lock: Path) -> list[Pin]:
    """Those that are neither built here nor in the driver's environment, perhaps as a build with a label."""
    path = [sysconfig.get_path("purelib")]
    return [
        pin
        for pin in read(lock)
        if pin.name not in RECIPES
        and pin.version not in (each.version.partition("+")[0] for each in distributions(name=pin.name, path=path))
    ]
