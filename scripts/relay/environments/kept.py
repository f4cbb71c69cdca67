"""What takes long to make and is kept for this user: the one cache of wheels, DeepSpeed's operations, C++ programs.

Each thing that was built is a file in a folder of its own, below `torch-relay/built`. The folder's name has a digest of
all that the file depends on. It is there with its file, or not at all: a build that is killed leaves nothing there, and
of two builds at once on a disk without locks the first one counts.
"""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.base.clock import duration
from relay.base.errors import UserError
from relay.base.files import errors_in_one_line
from relay.chain import files, writers
from relay.environments.node_folder import noexec
from relay.environments.versioned import only_one
from relay.run_folder.known_faults import look_up

# A login node is shared: a build takes no more of its CPUs.
MOST_CPUS = 8
TELL_SECONDS = 60.0
ELSEWHERE = "name a folder of yours on another disk in XDG_CACHE_HOME"
COMPILERS = {"g++": "g++", "make": "make"}  # programs, each with the Debian package that brings it
# The user's, which change what compilers make. CMake and setuptools heed most of them.
HEEDED = re.compile(r"CC|CXX|(C|CXX|CPP|LD|CUDA)FLAGS|NVCC_(APPEND|PREPEND)_FLAGS|CMAKE_\w+|HOROVOD_\w+|DS_\w+")

# What tells an error in the words of compilers, CMake, pip and shells; the first that is met counts.
TELLING = (r"(?i)\berror:(?! subprocess)|CMake Error|THESE PACKAGES", r": (command )?not found$")

IN_ENGLISH = {"LC_ALL": "C"}  # what compilers say otherwise, nothing here would understand


def cache() -> Path:
    """This user's folder for what took long to make: `$XDG_CACHE_HOME/torch-relay`, or `~/.cache/torch-relay`.

    Raises UserError for a user without a home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-relay"
    except RuntimeError:
        raise UserError(f"user {os.getuid()} has no home folder here: set HOME, or {ELSEWHERE}") from None


@contextmanager
def usable(place: Path) -> Iterator[None]:
    """While something is made in a folder of the cache. The folder is made where it is missing.

    Raises UserError for a folder in which others could put what is then run, and for an OSError: a full or read-only
    disk, which the user can mend or avoid.
    """
    remedy = f"environments and what was built are kept below {cache()}: free or repair that disk, or {ELSEWHERE}"
    with errors_in_one_line(place, "cannot be used", remedy):
        writers.make_own(place)
        if problem := writers.unsafe_above(place, own=1):
            raise UserError(f"{problem}, or {ELSEWHERE}: what is kept in {place} would be run")
        yield


@dataclass(frozen=True)
class Build:
    """A build under way: of what, in which empty folder on a local disk, and the file for all that programs say."""

    what: str
    folder: Path
    log: Path

    def run(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run a step. Its compilers end with this process: they are in one process group. Raises UserError."""
        with self.log.open("a", encoding="utf-8") as said:
            together: dict[str, Any] = {"stdout": said, "stderr": subprocess.STDOUT, "start_new_session": True}
            with subprocess.Popen(words, env={**(environment or os.environ), **IN_ENGLISH}, **together) as running:
                try:
                    status = running.wait()
                except BaseException:
                    with suppress(ProcessLookupError):
                        os.killpg(running.pid, signal.SIGKILL)
                    raise
        if status:
            raise self.failed(self.log.read_text(encoding="utf-8", errors="replace"))

    def failed(self, said: str, remedy: str = "") -> UserError:
        """The error of a build that has said this: its first line that tells an error."""
        lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no line says why"]
        telling = (number for text in TELLING for number, line in enumerate(lines) if re.search(text, line))
        place = next(telling, len(lines) - 1)
        reason = " ".join(lines[place : place + (2 if lines[place].endswith(":") else 1)])[:300]  # CMake's comes next
        fault = look_up(reason)
        if fault and fault.name == "environment" and not remedy:
            remedy = fault.remedy
        where = f"on node {os.uname().nodename}"
        helps = f"; {remedy}" if remedy else ""
        return UserError(f"{self.what} could not be built {where}: {reason}{helps}; all that was said is in {self.log}")


def kept(name: str, depends_on: Sequence[Any], what: str, make: Callable[[Build], Path]) -> Path:
    """The file that is kept under this name for all that it depends on (plain data). Raises UserError.

    `make` builds it where it is not there, and returns the finished file; `what` it is called in messages. What was
    built stays usable where the disk has become read-only.
    """
    digest = hashlib.sha256(json.dumps([*depends_on, platform.machine()]).encode()).hexdigest()[:12]
    named = f"{name}-{digest}"
    for place in (cache() / "built" / named, _folder() / named):  # what the nodes share is read where it is read-only
        if file := _made(place):
            return file
    with usable(place.parent), only_one(place):
        if file := _made(place):  # meanwhile, by another process
            return file
        started, log = time.monotonic(), place.with_name(f"{place.name}.log")
        print(f"Building {what} on node {os.uname().nodename}; this is done once; its log: {log}", flush=True)
        log.write_text("", encoding="utf-8")
        with scratch() as folder, telling(f"building {what}"):
            with errors_in_one_line(folder, "cannot be used", "free that disk, or name another folder in TMPDIR"):
                built = make(Build(what, folder, log))
            _keep(built, place)
        print(f"  built in {time.monotonic() - started:.0f} s", flush=True)
    file = _made(place)
    assert file is not None
    return file


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder on a local disk; in the cache where that disk is mounted noexec, as /tmp is on some machines."""
    disk = Path(tempfile.gettempdir())
    if noexec(disk):
        writers.make_own(disk := cache())
    with tempfile.TemporaryDirectory(prefix="torch-relay-build-", dir=disk) as folder:
        yield Path(folder)


def _folder() -> Path:
    """The cache that the user's nodes share; the node's own where the former cannot be written in a job."""
    shared, own = cache() / "built", os.environ.get("TORCH_EXTENSIONS_DIR")
    with suppress(OSError):
        writers.make_own(shared)
    return Path(own) if own and not os.access(shared, os.W_OK) else shared


def _made(place: Path) -> Path | None:
    """The file that was built; None where it is not there, or others could have put it there."""
    with suppress(OSError):
        for file in place.iterdir():  # none is left where old files are deleted by age
            return file if file.stat().st_size and not writers.unsafe_above(file, own=3) else None
    return None


def _keep(finished: Path, place: Path) -> None:
    """Copy the finished file into its folder, which is there at once with the whole file."""
    beside = tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent, ignore_cleanup_errors=True)
    with beside as text:
        new = Path(text)
        new.chmod(0o755)
        file = Path(shutil.copy2(finished, new))
        writers.keep_to_owner(file)
        files.sync(file)
        files.sync(new)
        try:
            new.rename(place)
        except OSError:  # without locks, another process may have been first
            if _made(place) is None:
                shutil.rmtree(place, ignore_errors=True)
                new.rename(place)


def cpus() -> str:
    """How many CPUs a build uses."""
    return str(min(len(os.sched_getaffinity(0)), MOST_CPUS))


def lacking(programs: Mapping[str, str]) -> list[str]:
    """Those programs that this machine lacks, one line for each, with the Debian package that brings it."""
    absent = {program: package for program, package in programs.items() if shutil.which(program) is None}
    return [f"{program}: no such program on PATH (Debian: {package})" for program, package in absent.items()]


def compilers(*programs: str) -> list[Any]:
    """What a build depends on by its compilers: their versions, and the user's variables that they heed.

    `programs` are asked beside the C++ compiler, which is that of CXX, or else `g++`.
    """
    versions = []
    for words in (shlex.split(os.environ.get("CXX") or "g++"), *([program] for program in programs)):
        with suppress(OSError):
            done = subprocess.run([*words, "--version"], check=False, capture_output=True, text=True)
            versions.append(done.stdout)
    return [versions, {name: value for name, value in sorted(os.environ.items()) if HEEDED.fullmatch(name)}]


@contextmanager
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
