"""Locks that the login node records: what pip would take, asked once, and held as long as the same is asked for."""

import platform
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from packaging.markers import Marker

from relay.base.errors import UserError
from relay.base.files import write_text
from relay.environments import pip
from relay.environments.locks import Pin, lock_of, read, text_of
from relay.environments.versioned import only_one
from relay.environments.wheelhouse import version_of
from relay.spec.identity import fingerprint

LABEL = "locked"  # the local version label of the stand-ins


@dataclass(frozen=True, kw_only=True)
class LockRequest:
    """What a recorded lock is to hold: `requirements`, as pip takes them, for a Python.

    `held` are packages of the stack's own lock. They keep their versions and are in the new lock as well. Those of
    `beside` have these versions where they are needed. `index` is the address of an index that is
    asked where pip's own configuration has no solution. `site` names the cluster whose own wheels are meant: pip then
    keeps to the folders of wheels that its configuration names, which the cluster's `modules` may set.
    `refused` is what the user is told where there is no solution; {error} in it are pip's words.
    """

    stack: str
    requirements: tuple[str, ...]
    python: str
    refused: str
    held: Sequence[Pin] = ()
    beside: Sequence[Pin] = ()
    modules: tuple[str, ...] = ()
    index: str = ""
    site: str = ""

    def __post_init__(self) -> None:
        """Raises UserError for a Python that does not run."""
        version_of(Path(self.python))

    @property
    def version(self) -> str:
        """The version of the Python, such as 3.12."""
        return version_of(Path(self.python))

    @property
    def name(self) -> str:
        """The recorded stack: the project's stack, and a digest of everything that selects the packages."""
        named = [sorted(versions(each)) for each in (self.held, self.beside)]
        parts = [self.requirements, self.version, sys.platform, platform.machine(), *named]
        return f"{self.stack}-{fingerprint([*parts, self.modules, bool(self.site), self.site, self.index])}"

    @property
    def lock(self) -> Path:
        """Where the lock is, or will be."""
        return lock_of(Path(), self.name)


def record(request: LockRequest) -> None:
    """Write the lock unless it is there. Raises UserError where pip has no solution, or what the lock holds is gone."""
    if request.lock.is_file():
        _check(request.lock)
        return
    text = _text(request)
    with only_one(request.lock):
        if not request.lock.is_file():  # another driver may have written it meanwhile: that one's versions hold
            write_text(request.lock, text)


def _text(request: LockRequest) -> str:
    """The lock's text, as pip answers today. Raises UserError where it has no solution."""
    what = ", ".join(request.requirements)
    print(
        f"Looking for what stack {request.stack} needs for {what} (once; {request.lock})", file=sys.stderr, flush=True
    )
    try:
        new = [(pin, url) for pin, url in _answered(request) if not pin.version.endswith(f"+{LABEL}")]
    except UserError as error:
        raise UserError(request.refused.replace("{error}", str(error).replace(f"+{LABEL}", ""))) from None
    head = [
        f"# Recorded on {time.strftime('%Y-%m-%d')} for {what} (Python {request.version}, {platform.machine()}).",
        "# It holds as long as the same is asked for. Delete it to look for today's versions.",
    ]
    text = "".join(f"{line}\n" for line in head) + text_of(request.held)
    for pin, url in new:
        text += f"# {url}\n" if request.site and url.startswith("file:") else ""
        text += pin.lines()
    return text


def _answered(request: LockRequest) -> list[tuple[Pin, str]]:
    """What pip answers by its own configuration; where it has no solution, with the further index."""
    with tempfile.TemporaryDirectory(prefix="torch-relay-locked-") as text:
        folder = Path(text)
        options = ["--no-index"] if request.site else []
        if request.held or request.beside:
            (folder / "constraints.txt").write_text("\n".join(_constraints(request, folder)) + "\n", encoding="utf-8")
            options += ["--constraint", str(folder / "constraints.txt"), "--find-links", str(folder)]
        ask = partial(pip.would_install, request.requirements, python=request.python, modules=request.modules)
        try:
            return ask(options=options)
        except UserError:
            if not request.index:
                raise
            return ask(options=[*options, "--extra-index-url", request.index])


def _constraints(request: LockRequest, folder: Path) -> Iterator[str]:
    """The versions that hold. The stack's own packages get stand-ins in `folder`: wheels without files.

    So pip fetches none of them (torch and CUDA's libraries would be gigabytes), and needs no wheel of those that have
    none. It takes a stand-in for the package's own version, because `==2.13.0` accepts any label.
    """
    held = dict(versions(request.held, request.version))
    for name, version in held.items():
        _stand_in(folder, name, version)
        yield f"{name}==={version}+{LABEL}"
    yield from (f"{name}=={version}" for name, version in versions(request.beside, request.version) if name not in held)


def versions(entries: Iterable[Pin], python: str | None = None) -> Iterator[tuple[str, str]]:
    """The packages with their versions; with `python` those for that version of Python alone."""
    variables = {"python_version": python, "python_full_version": f"{python}.0"} if python else {}
    for entry in entries:
        if python is None or not entry.marker or Marker(entry.marker).evaluate(dict(variables)):
            yield entry.name, entry.version


def _stand_in(folder: Path, name: str, version: str) -> None:
    """Write a wheel without files, of the package's own version. It has the extras of the installed package."""
    label, plain = f"{version}+{LABEL}", name.replace("-", "_")
    about = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {label}", *_extras(name, version)]
    files = {
        "METADATA": "\n".join(about) + "\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: torch-relay\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{plain}-{label}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(f"{plain}-{label}.dist-info/{file}", text)


def _extras(name: str, version: str) -> Sequence[str]:
    """What the package's extras need, where this very version is installed here: others may ask for `fsspec[http]`."""
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return []
    if about["Version"].partition("+")[0] != version:
        return []
    needed = [line for line in about.get_all("Requires-Dist", []) if "extra ==" in line]
    return [
        *(f"Provides-Extra: {extra}" for extra in about.get_all("Provides-Extra", [])),
        *(f"Requires-Dist: {line}" for line in needed),
    ]


def write_conda(request: LockRequest, declared: Path) -> None:
    """Write the file of the conda environment, beside the lock: the site's own file with the recorded packages."""
    place, held = request.lock.with_suffix(".yaml"), dict(versions(request.held))
    new = [f"{name}=={version}" for name, version in versions(read(request.lock)) if name not in held]
    content = yaml.safe_load(declared.read_text(encoding="utf-8"))
    dependencies = list(content.get("dependencies") or ["python", "pip"])
    pips = next((each["pip"] for each in dependencies if isinstance(each, dict) and "pip" in each), None)
    if pips is None:
        dependencies.append({"pip": (pips := [])})
    pips += new
    text = yaml.safe_dump(content | {"dependencies": dependencies}, sort_keys=False)
    if not place.is_file() or place.read_text(encoding="utf-8") != text:
        write_text(place, text)


def _check(lock: Path) -> None:
    """Raise UserError where a cluster's folder of wheels has no more what a recorded lock holds.

    A folder that is not to be seen from here says nothing.
    """
    for url, name, version in re.findall(r"(?m)^# (file://\S+)\n([^=\s]+)==(\S+)", lock.read_text(encoding="utf-8")):
        file = Path(unquote(urlsplit(url).path))
        if file.parent.is_dir() and not file.exists():
            lacks = f"{name} {version} ({file.name}) is no more in {file.parent}"
            raise UserError(f"{lock}: {lacks}; delete this lock to begin again with what is there today")
