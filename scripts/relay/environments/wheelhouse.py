"""A stack's wheels, fetched on the login node for nodes without network.

The folder holds the wheels, `requirements.txt` (what to install, with hashes) and `SHA256SUMS`, in the format of
`sha256sum`. Every hash is checked against the lock, and the folder is either complete or absent. pip fetches the
wheels, so that the user's own configuration of pip applies (mirrors, folders, proxies, certificates).
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import fresh_folder, sha256
from relay.environments import built, installer, kept, pip
from relay.environments.locks import Pin, exactly, is_recorded, lock_of, pinned, read
from relay.environments.recipes import RECIPES
from relay.environments.versioned import only_one
from relay.spec import cuda

FOLDER = Path("results/wheelhouses")
CPU_BUILDS = ("torch", "torchvision")
CPU_REMEDY = "add a mirror to pip's configuration, or take the CUDA build (gigabytes): environment.torch: cuda"
REQUIREMENTS = "requirements.txt"
MADE_WITH = "# Python"  # the line of REQUIREMENTS that begins so names the Python version of the wheels
SUMS = "SHA256SUMS"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a wheelhouse must hold: a stack's locked wheels for one Python and one build of torch.

    `arch_list` is what the CUDA code that is built here is for, as TORCH_CUDA_ARCH_LIST takes it.
    """

    stack: str
    build: str
    python: Path
    locks: tuple[Path, ...]
    arch_list: str | None = None

    @property
    def folder(self) -> Path:
        """The folder of the wheels, relative to the workflow's. Its name is a hash of everything that selects them."""
        digest = hashlib.sha256(f"{self.build} {version_of(self.python)} {platform.machine()}\n".encode())
        for lock in self.locks:
            digest.update(lock.read_bytes())
        for entry in self.built:
            digest.update(repr(RECIPES[entry.name]).encode())
            digest.update(f"{self.arch_list or ''}".encode() if self.build != "cpu" else b"")
        return FOLDER / f"{self.stack}-{digest.hexdigest()[:12]}"

    @property
    def locked(self) -> list[Pin]:
        """The packages of the locks."""
        return [entry for lock in self.locks for entry in read(lock)]

    @property
    def built(self) -> list[Pin]:
        """Those that have no wheel, and are built here."""
        return [entry for entry in self.locked if entry.name in RECIPES]

    def requirements(self, labelled: Collection[str]) -> str:
        """What pip is asked for; of the packages `labelled`, their CPU builds."""
        return exactly((entry for entry in self.locked if entry.name not in RECIPES), labelled)


def order(root: Path, stack: str, build: str, python: str | None = None, arch_list: str | None = None) -> Order:
    """The order for a stack of the project in `root`. `python` is a path; None means the driver's base Python.

    Raises UserError for a build without locked hashes, and for a stack without a lock.
    """
    locks = [lock_of(root, stack)]
    if build == "cuda":
        locks.append(root / "envs" / "torch-cuda.txt")  # the same for all stacks, for all have the same torch
    elif build != "cpu" and not is_recorded(stack):
        raise UserError(f"environment.torch: {build!r} has no locked wheels; allowed: cpu, cuda, or another mode")
    if absent := next((lock for lock in locks if not lock.is_file()), None):
        raise UserError(f"stack {stack!r}: the lock {absent} is missing: restore it, or run `make lock`")
    made_with = Path(python or base_python())
    return Order(stack=stack, build=build, python=made_with, locks=tuple(locks), arch_list=arch_list)


def base_python() -> str:
    """The Python that the driver's virtual environment was made with."""
    return str(getattr(sys, "_base_executable", sys.executable))


@lru_cache
def version_of(python: Path) -> str:
    """The version of a Python program, such as `3.11`. Raises UserError for a program that does not run as Python."""
    if str(python) == base_python():
        return "{}.{}".format(*sys.version_info)
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    remedy = "name the path of one, such as /usr/bin/python3.12, in the site's file"
    why = "it tells no version"  # another program, which ends well whatever it is told
    try:
        done = subprocess.run([str(python), "-I", "-c", ask], check=True, capture_output=True, text=True, timeout=60)
        if re.fullmatch(r"\d+\.\d+", version := done.stdout.strip()):
            return version
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
    raise UserError(f"environment.python: {python} does not run as Python ({why}); {remedy}")


def fetch(wanted: Order) -> Path:
    """Complete the wheelhouse of an order and return its folder. Only wheels that are missing or damaged are fetched.

    Raises UserError where a wheel cannot be fetched, or its hash is not in the lock.
    """
    place = wanted.folder
    with only_one(place.parent / "fetching"):
        bad = damaged(place)
        if bad == []:
            print(f"{place} is up to date", flush=True)
            return place
        for name in bad or ():
            print(f"{place}: {name} is missing or damaged; it is fetched again", flush=True)
        with fresh_folder(place) as partial:
            _keep_good(wanted, place, partial, bad)
            _download(wanted, partial)
            _describe(wanted, partial)
            if wanted.built:
                _describe(wanted, partial, _build(wanted, partial))
            if place.exists():
                for file in partial.iterdir():  # one by one, because a job may be reading there
                    file.replace(place / file.name)
            else:
                partial.rename(place)
        size = sum(wheel.stat().st_size for wheel in place.glob("*.whl"))
        print(f"{place}: {len(list(place.glob('*.whl')))} wheels, {size / 1e6:.0f} MB, every hash checked", flush=True)
    return place


def damaged(place: Path) -> list[str] | None:
    """Names of the files that are missing or have a wrong hash; None where there is no wheelhouse."""
    sums = _sums(place)
    bad = [name for name, digest in sums.items() if not (place / name).is_file() or sha256(place / name) != digest]
    return bad if sums else None


def has_files(place: Path) -> bool:
    """Whether a wheelhouse has all of its files, whatever is in them."""
    sums = _sums(place)
    return bool(sums) and all((place / name).is_file() for name in sums)


def _sums(place: Path) -> dict[str, str]:
    """The hash of each file, read from SHA256SUMS; empty where there is no wheelhouse."""
    try:
        text = (place / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: digest for digest, name in re.findall(r"(?m)^([0-9a-f]{64})  ([^/\s]+)$", text)}


def _keep_good(wanted: Order, place: Path, partial: Path, bad: list[str] | None) -> None:
    """Link the undamaged wheels, but not those built here, into the new folder, where pip finds and checks them."""
    built_here = {entry.name for entry in wanted.built}
    for name in _sums(place):
        if name.endswith(".whl") and name not in (bad or ()) and name.partition("-")[0] not in built_here:
            try:
                os.link(place / name, partial / name)
            except OSError:  # a file system without hard links
                shutil.copy2(place / name, partial)


def _download(wanted: Order, partial: Path) -> None:
    """Fetch the wheels that are published. Raises UserError where one cannot be had."""
    python = version_of(wanted.python)
    print(f"Fetching the wheels of stack {wanted.stack} ({wanted.build}, Python {python})", flush=True)
    if wanted.build != "cpu":
        words = _pip_download(wanted, (), partial)
        if words and cuda.of_an_index(wanted.build):
            words = _pip_download(wanted, (), partial, "--extra-index-url", cuda.index(wanted.build))
    else:
        words = _pip_download(wanted, CPU_BUILDS, partial)
        where: tuple[str, ...] = ()
        if pip.lacks("torch", words):
            index = cuda.index("cpu")  # PyPI has no CPU-only builds for Linux
            torch = f"{pinned(wanted.locked, 'torch')}+cpu"
            print(f"  no torch {torch} where pip's own configuration looks; asking {index}", flush=True)
            if not pip.index_offers(index, "torch", torch, pip=pip.program(wanted.python)):
                lacks = f"no torch {torch} for Python {python} there either, or it cannot be reached"
                raise UserError(f"{lacks}; {CPU_REMEDY}")
            where = ("--extra-index-url", index)
            words = _pip_download(wanted, CPU_BUILDS, partial, *where)
        # Not every Python has a CPU build of torchvision; the registry's does beside that of torch.
        if pip.lacks("torchvision", words):
            words = _pip_download(wanted, CPU_BUILDS[:1], partial, *where)
    if words:
        raise UserError(f"the wheels of stack {wanted.stack} could not be fetched: {words}")


def _pip_download(wanted: Order, labelled: Collection[str], folder: Path, *options: str) -> str:
    """Download the wheels; of the packages `labelled`, their CPU builds. Returns '' or pip's error on one line."""
    file = folder / "asked.txt"
    file.write_text(wanted.requirements(labelled), encoding="utf-8")
    what = ["--require-hashes", "--only-binary=:all:", "--dest", str(folder), "--requirement", str(file)]
    words = pip.run(wanted.python, "download", *what, *options)
    file.unlink()
    return words


def _build(wanted: Order, partial: Path) -> set[str]:
    """Add the wheels that have to be built, in an environment of the others; their names. Raises UserError."""
    names = set()
    with kept.scratch() as folder:
        environment = folder / "environment"
        installer.install(partial, partial / REQUIREMENTS, wanted.python, environment)
        for pin in wanted.built:
            wheel = built.wheel(pin, environment / "bin" / "python", wanted.build, wanted.arch_list)
            shutil.copy2(wheel, partial)
            names.add(wheel.name)
    return names


def _describe(wanted: Order, folder: Path, built_here: Set[str] = frozenset()) -> None:
    """Write `requirements.txt`, with each wheel's version and hash, and `SHA256SUMS`.

    `built_here` are the names of wheels that no lock has. Raises UserError for another one whose hash is in no lock.
    """
    hashes = {digest for entry in wanted.locked for digest in entry.hashes}
    lines = [f"{MADE_WITH} {version_of(wanted.python)}"]
    digests = {wheel.name: sha256(wheel) for wheel in sorted(folder.glob("*.whl"))}
    for name, digest in digests.items():
        if name not in built_here and f"sha256:{digest}" not in hashes:
            raise UserError(f"{folder / name}: its hash is in none of the stack's locks")
        package, version = name.split("-")[:2]
        lines.append(f"{package}=={version} --hash=sha256:{digest}")
    (folder / REQUIREMENTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    digests[REQUIREMENTS] = sha256(folder / REQUIREMENTS)
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()), encoding="utf-8")
