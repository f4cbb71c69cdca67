"""A further stack on a machine without a scheduler: what its lock has beside the driver's own environment.

The driver's environment has torch already, gigabytes in some builds. So a further stack is a virtual environment of its
own that also sees the driver's packages. All locks agree with the driver's, so that nothing is there in two versions.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions, version
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import read_json_or, write_json
from relay.environments import built, installer, patience, pip
from relay.environments.lock_text import exactly, without
from relay.environments.node_folder import clear, new_version, only_one, point, use
from relay.environments.recipes import RECIPES
from relay.environments.whole import is_whole, packages

DRIVERS = "torch"  # the stack that the driver's own environment has
MARKER = "relay-environment.json"  # written last, so only a complete environment has it
SEES_DRIVER = "relay_driver.pth"


def place(lock: Path) -> Path | None:
    """Where a lock's environment is, or will be; None for the stack that the driver's own environment has.

    The name is a digest of the lock, of how its packages are built, and of the environment beneath.
    """
    if lock.stem == DRIVERS or not lock.is_file():
        return None
    text = lock.read_text(encoding="utf-8")
    recipes = [repr(RECIPES[name]) for name in built.entries(text)]
    known = [text, recipes, sys.version, str(Path(sys.prefix).resolve()), version("torch")]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]
    return built.cache() / "environments" / f"{lock.stem}-{digest}"


def interpreter(link: Path) -> str:
    """The Python of an environment, which is kept as long as this process lives.

    Raises UserError where it was not made, or is gone.
    """
    found = use(link)
    if found is None or not (found / MARKER).exists():
        raise UserError(f"no environment at {link}; have it made: `snakemake --forcerun environment`")
    return str(found / "bin" / "python")


def make(lock: Path, arch_list: str | None = None) -> Path:
    """Make a lock's environment unless it is there with every file, and return its place.

    `arch_list` is what CUDA code is built for (`built.wheel`).
    Raises UserError where a package can neither be fetched nor built.
    """
    link = place(lock)
    assert link is not None, "the driver's own environment is made by `make install`"
    with built.in_the_cache(), _alone(link) as held:
        parts = _optional_parts(lock)
        marked = read_json_or(link / MARKER, {})
        # An environment of before has no list of its packages.
        whole = (link / MARKER).exists() and set(parts) <= set(marked.get("parts", []))
        whole = whole and ("packages" not in marked or is_whole(link, MARKER))
        clear(link, but=link.resolve() if whole else None)
        if whole:
            print(f"environment: {link} is there", flush=True)
            return link
        started, folder = time.monotonic(), new_version(link)
        try:
            _install(lock, folder, held, arch_list)
            write_json(folder / MARKER, {"stack": lock.stem, "parts": parts, "packages": packages(folder)})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        point(link, folder)
        print(f"environment: {folder} made in {time.monotonic() - started:.1f} s", flush=True)
    return link


@contextmanager
def _alone(link: Path) -> Iterator[int]:
    """The lock of an environment's place, whose folder is made where it is missing."""
    link.parent.mkdir(parents=True, exist_ok=True)
    with only_one(link) as held:
        yield held


def _optional_parts(lock: Path) -> list[str]:
    """The optional headers that this machine has, for the packages that are built for a lock.

    They are no part of the environment's name, which the planner needs on machines of all kinds.
    """
    return [part for name in built.entries(lock.read_text("utf-8")) for part in built.optional(RECIPES[name])]


def site_packages(environment: Path) -> Path:
    """The folder of an environment's own packages."""
    return next(environment.glob("lib/python3*/site-packages"))


def _install(lock: Path, folder: Path, held: int, arch_list: str | None) -> None:
    """Install what the driver's environment lacks: wheels with the lock's hashes, then what has to be built."""
    text = lock.read_text(encoding="utf-8")
    installer.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], [held], place=folder)
    drivers = Path(sysconfig.get_path("purelib")).resolve()  # not through a link, which may be gone later
    (site_packages(folder) / SEES_DRIVER).write_text(f"{drivers}\n", encoding="utf-8")
    python = folder / "bin" / "python"
    wanted = folder / "wanted.txt"
    wanted.write_text(exactly(without(text, _not_fetched)), encoding="utf-8")
    checked = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    if wanted.stat().st_size:
        print(f"Fetching what stack {lock.stem} needs beside the driver's environment", flush=True)
        with patience.told(f"fetching for stack {lock.stem}"):
            installer.run(
                [*pip.program(python), "install", *checked, "--requirement", str(wanted)], [held], place=folder
            )
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
    return any(found.version.partition("+")[0] == pinned for found in drivers)


def _check(lock: Path, python: Path) -> None:
    """Raise UserError unless what was built can be imported: its compiled parts fit this torch."""
    for name in built.entries(lock.read_text(encoding="utf-8")):
        tried = RECIPES[name].tried
        done = subprocess.run([str(python), "-P", "-c", tried], check=False, capture_output=True, text=True)
        if done.returncode:
            raise UserError(
                f"{name} was built, and `{tried}` fails: {done.stderr.strip().rpartition(chr(10))[2][:300]}"
            )
