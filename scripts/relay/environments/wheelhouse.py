"""A stack's wheels, fetched on the login node for nodes without network: locked, hash-checked, complete or absent.

The folder holds the wheels, `requirements.txt` (what to install, with hashes) and `SHA256SUMS`, in the form of
`sha256sum`. pip fetches, so that its own configuration (mirrors, folders, proxies, certificates) is respected.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import sha256

FOLDER = Path("results/wheelhouses")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own CPU builds; the registry has CUDA's alone
PROBE_SECONDS = 15
REQUIREMENTS = "requirements.txt"
MADE_WITH = "# Python"  # begins that file's line that tells which Python the wheels fit
SUMS = "SHA256SUMS"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a wheelhouse is to hold: a stack's locked wheels for one Python and one build of torch (cpu or cuda)."""

    stack: str
    build: str
    python: Path
    locks: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """Where its wheels belong, named by all that decides what they are; relative to the results' folder."""
        digest = hashlib.sha256(f"{self.build} {_version(self.python)} {platform.machine()}\n".encode())
        for lock in self.locks:
            digest.update(lock.read_bytes())
        return FOLDER / f"{self.stack}-{digest.hexdigest()[:12]}"

    @property
    def requirements(self) -> str:
        """The locks' text, narrowed to one build of torch, so that another is never taken by accident.

        `===` takes plain versions only, where `==2.13.0` would also take a `2.13.0+cpu` that lies in a local folder.
        """
        text = "\n".join(lock.read_text(encoding="utf-8") for lock in self.locks)
        if self.build == "cpu":
            return re.sub(r"(?m)^(torch==[^\s+]+)", r"\1+cpu", text)
        return re.sub(r"(?m)^(torch|torchvision)==", r"\1===", text)


def order(root: Path, stack: str, build: str, python: str | None = None) -> Order:
    """The order for a stack of the project in `root`; `python`: a Python's path, None for the driver's base.

    Raises UserError for a build without locked hashes, and for a stack without a lock.
    """
    locks = [root / "envs" / f"{stack}.txt"]
    if build == "cuda":
        locks.append(root / "envs" / f"{stack}-cuda.txt")
    elif build != "cpu":
        raise UserError(f"environment.torch: {build!r} has no locked wheels; allowed: cpu, cuda, or another mode")
    absent = next((lock for lock in locks if not lock.is_file()), None)
    if absent:
        raise UserError(f"stack {stack!r}: the lock {absent} is missing: restore it, or run `make lock`")
    return Order(stack=stack, build=build, python=Path(python or base_python()), locks=tuple(locks))


def base_python() -> str:
    """The Python that the driver's virtual environment was made with."""
    return str(getattr(sys, "_base_executable", sys.executable))


def python_version(python: Path) -> str:
    """Such as `3.11`. Raises UserError for a program that is no Python."""
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        answer = subprocess.run([str(python), "-I", "-c", ask], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"environment.python: {python} does not run as Python ({type(error).__name__})") from None
    return answer.stdout.strip()


@lru_cache
def _version(python: Path) -> str:
    if str(python) == base_python():
        return "{}.{}".format(*sys.version_info)
    return python_version(python)


def fetch(wanted: Order) -> Path:
    """Bring the wheelhouse in step with the order: nothing where it is whole, else only what is missing or damaged.

    Raises UserError with one line where a wheel cannot be had, and where its hash is not the lock's.
    """
    place = wanted.folder
    place.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(place.parent):
        bad = damaged(place)
        if bad == []:
            print(f"{place} is up to date", flush=True)
            return place
        for name in bad or ():
            print(f"{place}: {name} is missing or damaged; fetched anew", flush=True)
        with _partial(place) as partial:
            _keep_good(place, partial, bad)
            _download(wanted, partial)
            _describe(wanted, partial)
            _move(partial, place)
        size = sum(wheel.stat().st_size for wheel in place.glob("*.whl"))
        print(f"{place}: {len(list(place.glob('*.whl')))} wheels, {size / 1e6:.0f} MB, every hash checked", flush=True)
    return place


def damaged(place: Path) -> list[str] | None:
    """Names of files that are missing or whose hash is wrong; None where there is no wheelhouse."""
    sums = _sums(place)
    bad = [name for name, digest in sums.items() if not (place / name).is_file() or sha256(place / name) != digest]
    return bad if sums else None


def _sums(place: Path) -> dict[str, str]:
    """File names and their hashes, as they were noted; none where there is no wheelhouse."""
    try:
        text = (place / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: digest for digest, name in re.findall(r"(?m)^([0-9a-f]{64})  ([^/\s]+)$", text)}


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Lets one call at a time fetch; the kernel gives the lock back, whatever ends the call."""
    with (folder / ".lock").open("w") as stream:
        with contextlib.suppress(OSError):  # some network filesystems lock nothing: then nobody is waited for
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _partial(place: Path) -> Iterator[Path]:
    """An empty folder beside the place, gone afterwards; also what a killed call has left of it."""
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _keep_good(place: Path, partial: Path, bad: list[str] | None) -> None:
    """Links the good wheels over, so that pip finds them there (and checks them again)."""
    for name in _sums(place):
        if name.endswith(".whl") and name not in (bad or ()):
            os.link(place / name, partial / name)


def _download(wanted: Order, partial: Path) -> None:
    requirements = partial / "asked.txt"
    requirements.write_text(wanted.requirements, encoding="utf-8")
    python = _version(wanted.python)
    print(f"Fetching the wheels of stack {wanted.stack} ({wanted.build}, Python {python})", flush=True)
    words = _pip_download(wanted, requirements, partial)
    if words and wanted.build == "cpu" and "for torch==" in words:
        torch = re.findall(r"(?m)^torch==(\S+)", wanted.requirements)[0]
        print(f"  no torch {torch} where pip's own configuration looks; asking {CPU_INDEX}", flush=True)
        if not _index_offers(wanted, torch):
            remedy = "add a mirror to pip's configuration, or take the CUDA build (gigabytes): environment.torch: cuda"
            raise UserError(f"no torch {torch} for Python {python} there either, or it cannot be reached; {remedy}")
        words = _pip_download(wanted, requirements, partial, "--extra-index-url", CPU_INDEX)
    requirements.unlink()
    if words:
        raise UserError(f"the wheels of stack {wanted.stack} could not be fetched: {words}")


def _pip(wanted: Order) -> list[str]:
    """The driver's pip, looking for what fits the order's Python."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python", str(wanted.python)]


def _pip_download(wanted: Order, requirements: Path, folder: Path, *options: str) -> str:
    """Download as the requirements' hashes allow; '' or, if that fails, pip's words on one line."""
    safety = ["--require-hashes", "--only-binary=:all:", "--progress-bar=off"]
    place = ["--dest", str(folder), "--requirement", str(requirements)]
    words: list[str] = []
    command = [*_pip(wanted), "download", *safety, *place, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if re.match(r"\s*(Downloading|Processing) ", line):
                size = re.search(r"\([0-9.]+ .B\)", line)
                print(f"  {line.split()[1].rpartition('/')[2]} {size[0] if size else ''}".rstrip(), flush=True)
            elif not line.startswith("WARNING: Location"):
                words.append(line.strip())
    if pip.returncode == 0:
        return ""
    error = next((n for n, line in enumerate(words) if line.startswith("ERROR:")), -1)
    # A hash's mismatch is told over several lines; "from versions:" would list hundreds.
    told = " ".join(" ".join(words[error:]).removeprefix("ERROR:").split())
    return re.sub(r"\(from versions: [^)]*\)", "", told)[-500:] if "HASHES" not in told else told[:700]


def _index_offers(wanted: Order, torch: str) -> bool:
    """Whether PyTorch's index answers in time and has that version; pip asks, with its proxy and certificates."""
    ask = [*_pip(wanted), "index", "versions", "torch", "--index-url", CPU_INDEX, "--retries=0"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        answer = subprocess.run(ask, check=False, capture_output=True, text=True, timeout=PROBE_SECONDS)
        listed = re.search(r"(?m)^Available versions: (.*)$", answer.stdout)
        return listed is not None and torch in listed.group(1).split(", ")
    return False


def _describe(wanted: Order, folder: Path) -> None:
    """Writes what to install, each with the hash of the one wheel that is there, and the sums of all files.

    Raises UserError for a wheel whose hash no lock has: nothing but pip may have put wheels there.
    """
    lines = [f"{MADE_WITH} {_version(wanted.python)}"]
    digests = {wheel.name: sha256(wheel) for wheel in sorted(folder.glob("*.whl"))}
    for name, digest in digests.items():
        if f"sha256:{digest}" not in wanted.requirements:
            raise UserError(f"{folder / name}: its hash is in none of the stack's locks")
        package, version = name.split("-")[:2]
        lines.append(f"{package}=={version} --hash=sha256:{digest}")
    (folder / REQUIREMENTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    digests[REQUIREMENTS] = sha256(folder / REQUIREMENTS)
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    (folder / SUMS).write_text(sums, encoding="utf-8")


def _move(partial: Path, place: Path) -> None:
    """Puts the new folder in its place; where one is, file by file, so that it is never gone for a running job."""
    if not place.exists():
        partial.rename(place)
        return
    for file in partial.iterdir():
        file.replace(place / file.name)
