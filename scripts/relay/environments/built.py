"""Wheels of packages that publish none, built once for each combination of compiler, torch and Python, and kept.

A build runs on the login node, or in a job that is not measured. It works in a temporary folder on a local disk; the
finished wheel goes into this user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from relay.base.clock import duration
from relay.base.errors import UserError
from relay.base.files import errors_in_one_line, fresh_folder
from relay.environments import nvcc, pip
from relay.environments.locks import ENTRY
from relay.environments.recipes import RECIPES, Recipe
from relay.environments.versioned import only_one
from relay.spec import cuda

# A login node is shared: a build takes no more of its CPUs.
MOST_CPUS = 8
ANY_GPU = (None, None)  # neither its name nor its generation is known
TELL_SECONDS = 60.0
ABOUT = """
import importlib.util, json, sys, torch
about = [sys.version, torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi()]
try:
    (nccl,) = importlib.util.find_spec("nvidia.nccl").submodule_search_locations
except (AttributeError, ImportError):
    nccl = ""
print(json.dumps({"about": about, "cuda": torch.version.cuda, "nccl": nccl}))
"""


def cache() -> Path:
    """This user's folder for what took long to make: `$XDG_CACHE_HOME/torch-relay`, or `~/.cache/torch-relay`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "torch-relay"


def in_the_cache() -> AbstractContextManager[None]:
    """Raise UserError for an OSError: a full or read-only disk, which the user can mend or avoid."""
    remedy = "free or repair that disk, or name a folder of yours on another one in XDG_CACHE_HOME"
    kept = f"environments and what was built are kept below {cache()}"
    return errors_in_one_line(cache(), "cannot be used", f"{kept}: {remedy}")


def entries(lock: str) -> dict[str, str]:
    """Those entries of a lock's text that have to be built: each with its version and hashes, by package."""
    return {entry[1]: entry[0] for entry in ENTRY.finditer(lock) if entry[1] in RECIPES}


def lacking(recipe: Recipe, build: str) -> list[str]:
    """What this machine lacks for a build, one line for each thing, with the Debian package that brings it."""
    lines = [
        f"{program}: no such program on PATH (Debian: {package})"
        for program, package in recipe.needed_programs(build).items()
        if shutil.which(program) is None
    ]
    return lines + [
        f"{header}: no such header (Debian: {package})"
        for header, package in recipe.headers.items()
        if not has_header(header)
    ]


def optional(recipe: Recipe) -> list[str]:
    """Those of a recipe's optional headers that this machine has."""
    return [header for header in recipe.optional_headers if has_header(header)]


def has_header(name: str) -> bool:
    """Whether the C++ compiler finds a header; without a compiler, whether it lies where one would look."""
    if shutil.which("g++") is None:
        folders = [*os.environ.get("CPATH", "").split(os.pathsep), "/usr/include", "/usr/local/include"]
        return any((Path(folder) / name).is_file() for folder in folders if folder)
    words, code = ["g++", "-E", "-x", "c++", "-"], f"#include <{name}>\n"
    try:
        done = subprocess.run(words, input=code, check=False, capture_output=True, text=True)
        return done.returncode == 0
    except OSError:
        return False


def wheel(entry: str, python: Path, build: str, arch_list: str | None = None) -> Path:
    """The wheel of a lock's entry (`entries`), built for the torch of an interpreter unless it is in the cache.

    `python` has torch, and what else the build needs, among its packages. `build` is torch's: cpu, or a CUDA build.
    `arch_list` is what CUDA code is built for, as TORCH_CUDA_ARCH_LIST takes it; None: the user's own, or all that the
    build of torch is for.
    Raises UserError for missing programs, for an nvcc of another version than torch's CUDA, for a source whose hash the
    lock does not have, and for a failed build, whose log it names.
    """
    package = entry.partition("==")[0]
    recipe = RECIPES[package]
    if missing := lacking(recipe, build):
        raise UserError(f"{package} has to be compiled here, and this machine lacks: {'; '.join(missing)}")
    torch = _torch_of(python)
    if build != "cpu" and (problem := nvcc.problem(torch["cuda"])):
        raise UserError(f"{package} has to be compiled here, and {problem}")
    arch_list = arch_list or os.environ.get("TORCH_CUDA_ARCH_LIST") or ";".join(cuda.capabilities([ANY_GPU], build))
    numbers = ",".join(re.findall(r"\d+", arch_list.replace(".", "")))
    values = {"arch_list": arch_list, "capabilities": numbers, "nccl": torch["nccl"]}
    variables = recipe.environment(build, values)
    key = _key(entry, recipe, torch, build, variables)
    return kept(f"{package}-{key}", partial(_build, entry, recipe, python, variables))


def kept(name: str, build: Callable[[Path, Path], Path]) -> Path:
    """The file that is kept under this name in the user's cache. `build(folder, log)` makes it where it is not there.

    It works in an empty folder on a local disk, and returns the path of the finished file. What all programs say goes
    into `log`, which stays. The file's own folder in the cache is there with it, or not at all.
    """
    place = cache() / "built" / name
    with in_the_cache(), only_one(place):
        if place.is_dir() and (there := sorted(place.iterdir())):
            return there[0]
        with tempfile.TemporaryDirectory(prefix="torch-relay-build-") as folder, fresh_folder(place) as new:
            made = build(Path(folder), place.with_suffix(".log"))
            shutil.copy2(made, new)
            shutil.rmtree(place, ignore_errors=True)
            new.rename(place)
    return place / made.name


def _torch_of(python: Path) -> dict[str, Any]:
    """What an interpreter's torch says of itself: `about` it, its `cuda`, and the folder of its `nccl`."""
    done = subprocess.run([str(python), "-P", "-c", ABOUT], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{python}: torch cannot be imported: {done.stderr.strip().rpartition(chr(10))[2]}")
    torch: dict[str, Any] = json.loads(done.stdout)
    return torch


def _key(entry: str, recipe: Recipe, torch: dict[str, Any], build: str, variables: dict[str, str]) -> str:
    """A digest of all that a wheel depends on: source, recipe, compilers, Python, torch, machine, optional headers."""
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    if build != "cpu":  # CUDA's own, of the site's module
        compiler += str(nvcc.version())
    lasting = {name: value for name, value in variables.items() if value != torch["nccl"]}  # a temporary folder's
    parts = [entry, repr(recipe), compiler, torch["about"], platform.machine(), build, optional(recipe), lasting]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _build(entry: str, recipe: Recipe, python: Path, variables: dict[str, str], folder: Path, log: Path) -> Path:
    """Fetch the source, change it as the recipe says, and build it in `folder`; the path of the wheel."""
    started = time.monotonic()
    name = entry.split(maxsplit=1)[0]
    print(f"Building {name} from its source; this takes some minutes, and is done once; its log: {log}", flush=True)
    (folder / "tmp").mkdir()
    (folder / "source.txt").write_text(entry, encoding="utf-8")
    cpus = min(len(os.sched_getaffinity(0)), MOST_CPUS)
    # The headers and libraries of the environment that it is built for, whatever Python's variables say.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "UV_"))}
    environment |= {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    environment |= {"TMPDIR": str(folder / "tmp")}  # where compilers and pip leave files when they are ended
    environment |= {"MAX_JOBS": str(cpus), "MAKEFLAGS": f"-j{cpus}", **variables}
    with log.open("w", encoding="utf-8") as said:
        run = partial(_run, environment=environment, log=log, said=said, name=name)
        plainly = ["--no-deps", "--no-build-isolation"]
        source = ["--no-binary=:all:", "--require-hashes", "--requirement", str(folder / "source.txt")]
        run([*pip.program(python), "download", *plainly, *source, "--dest", str(folder / "sdist")])
        unpacked = _unpacked(next((folder / "sdist").glob("*.tar.gz")), folder / "source")
        try:
            recipe.patch(unpacked)
        except (OSError, ValueError) as error:
            raise UserError(f"{name}: {error}") from None
        with telling(f"building {name}"):
            run([*pip.program(python), "wheel", *plainly, "--wheel-dir", str(folder / "wheel"), str(unpacked)])
    print(f"  built in {time.monotonic() - started:.0f} s", flush=True)
    return next((folder / "wheel").glob("*.whl"))


def _run(command: list[str], environment: dict[str, str], log: Path, said: TextIO, name: str) -> None:
    """Run a step of a build, in a process group of its own: where this process is told to end, compilers end too."""
    together: dict[str, Any] = {"stdout": said, "stderr": subprocess.STDOUT, "start_new_session": True}
    with subprocess.Popen(command, env=environment, **together) as running:
        try:
            status = running.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            raise
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said_why = (line.strip() for line in lines if re.search(r"(?i)\berror:(?! subprocess)|THESE PACKAGES", line))
        reason = next(said_why, "no line says why")
        raise UserError(f"{name} could not be built: {reason[:300]}; all that was said is in {log}")


def _unpacked(archive: Path, folder: Path) -> Path:
    """The one folder of a source archive."""
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


@contextlib.contextmanager
def telling(what: str) -> Iterator[None]:
    """While this lasts, a line a minute says how long it has lasted: also where nobody looks at a terminal."""
    started, over = time.monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(TELL_SECONDS):
            print(f"  {what}: {duration(time.monotonic() - started)} so far", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
