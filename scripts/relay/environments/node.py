"""The Python that a job's processes run with: found on the node, or built on the node's own disk. Torch-free.

`prepare` runs once on each node, by the driver's Python, and needs no network; the ranks then ask `interpreter`.
What both read is the `environment` of a run's job (`relay.environments.login_node.asked`): `mode`, `stack`, `python`,
`wheelhouse`, `site_wheels`, `packages`, `image`, `nvidia`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import write_json
from relay.environments.node_folder import (
    clear,
    in_one_line,
    new_version,
    node_disk,
    only_one,
    own_folder,
    point,
    use,
    versions,
)
from relay.environments.wheelhouse import MADE_WITH, REQUIREMENTS, base_python, damaged, python_version

__all__ = ["interpreter", "needs_preparation", "node_disk", "own_folder", "prepare"]

MARKER = "relay-environment.json"  # in an environment that is complete; written last
# Wheels of torch unpack to up to four times their size; files are linked from uv's cache, not copied.
UNPACKED = 4
FETCH_AGAIN = "have it fetched on the login node: `snakemake --profile … --forcerun environment`"


def needs_preparation(environment: Mapping[str, Any]) -> bool:
    """Whether `prepare` has something to do on each node before the ranks start."""
    return bool(environment["mode"] == "wheels")


def interpreter(environment: Mapping[str, Any], disk: Path) -> list[str]:
    """The command line's beginning that runs a job's Python on this node, without its arguments.

    Raises UserError where the mode's Python is not there, or is the driver's though another was promised.
    """
    mode = environment["mode"]
    _check_modules(environment)
    if mode == "current":
        return [sys.executable]
    if mode == "wheels":
        with in_one_line(disk):
            version = use(place := _place(environment, disk))
        if version is None or not (version / MARKER).exists():
            raise UserError(f"no environment at {place} on node {os.uname().nodename}: it was not prepared there")
        return [str(version / "bin" / "python")]
    if mode in ("conda", "modules"):
        return [_on_path(mode)]
    if mode == "apptainer":
        return _contained(environment, disk)
    raise UserError(f"environment.mode: {mode!r} is none of wheels, conda, modules, apptainer, current")


def prepare(environment: Mapping[str, Any], disk: Path) -> None:
    """Make the environment of mode `wheels` on this node's disk, or keep the one there; other modes: nothing.

    Jobs on one node wait for each other. What was cut short, or has lost files since, is made anew, beside the old
    one: a job that runs from it keeps its files.
    Raises UserError for a missing wheelhouse, an unfit Python, a full or broken disk, and what the installer says.
    """
    if not needs_preparation(environment):
        return
    _check_modules(environment)
    with in_one_line(disk), only_one(place := _place(environment, disk)) as lock:
        if whole := _is_whole(place):
            print(f"environment: {place.resolve()} is there", flush=True)
        elif place.is_symlink() or versions(place):
            print(f"environment: {place} is incomplete, and made anew", flush=True)
        clear(place, but=place.resolve() if whole else None)
        if not whole:
            _make(environment, place, lock)


def _make(environment: Mapping[str, Any], place: Path, lock: int) -> None:
    """Build a new version, and have it used from now on. What cannot be finished is removed."""
    started = time.monotonic()
    folder = new_version(place)
    install = _from_site if environment["site_wheels"] else _from_wheelhouse
    try:
        install(environment, folder, lock)
        packages = sorted(path.name for path in folder.glob("lib/python3*/site-packages/*.dist-info"))
        write_json(folder / MARKER, {"stack": environment["stack"], "packages": packages})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    point(place, folder)
    print(f"environment: {folder} made in {time.monotonic() - started:.1f} s", flush=True)


def _check_modules(environment: Mapping[str, Any]) -> None:
    """Refuse to go on where a module of the site is not loaded: Snakemake goes on after a `module load` that failed.

    Conda's are loaded before Snakemake is started.
    """
    wanted = environment.get("modules", []) if environment["mode"] != "conda" else []
    loaded = [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name]
    for name in wanted:
        if not any(f"{found}/".startswith(f"{name}/") for found in loaded):
            where = f"not loaded on node {os.uname().nodename} (loaded: {', '.join(loaded) or 'none'})"
            remedy = "`bash -c 'module list'` must work there, and the site's file name it as that does"
            raise UserError(f"modules: {name!r} is {where}: {remedy}; the log above has the words of `module load`")


def _place(environment: Mapping[str, Any], disk: Path) -> Path:
    """Where the environment belongs: a link in this user's folder, named by what is installed and with which Python."""
    if environment["site_wheels"]:
        content: Any = list(environment["packages"])
    else:
        content = _requirements(environment).read_text(encoding="utf-8")
    key = json.dumps([content, str(_python(environment).resolve())])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return own_folder(disk) / f"{environment['stack']}-{digest}"


def _requirements(environment: Mapping[str, Any]) -> Path:
    path = Path(environment["wheelhouse"]) / REQUIREMENTS
    if not path.is_file():
        raise UserError(f"no wheelhouse at {path.parent} on node {os.uname().nodename}; {FETCH_AGAIN}")
    return path


def _python(environment: Mapping[str, Any]) -> Path:
    """The Python that the environment is made with: the one named, or the one that the driver's was made with."""
    python = Path(environment["python"] or base_python())
    if not os.access(python, os.X_OK) or python.is_dir():
        raise UserError(f"environment.python: {str(python)!r} is no program on node {os.uname().nodename}")
    return python


def _is_whole(place: Path) -> bool:
    """Whether the environment was completed and still has every file: cleaners of /tmp take files one by one."""
    try:
        packages = json.loads((place / MARKER).read_text(encoding="utf-8"))["packages"]
        site_packages = next(place.glob("lib/python3*/site-packages"))
        records = [(site_packages / name / "RECORD").read_text(encoding="utf-8") for name in packages]
    except (OSError, ValueError, StopIteration):
        return False
    return (place / "bin/python").exists() and all(_has_files(site_packages, record) for record in records)


def _has_files(folder: Path, record: str) -> bool:
    """Whether a package's files are there in their sizes. Files without one (bytecode) may come and go."""
    try:
        # As text: pathlib would take a second for torch's 15,000 files.
        sized = [(f"{folder}/{path}", int(size)) for path, _, size in csv.reader(record.splitlines()) if size]
        return all(os.stat(path).st_size == size for path, size in sized)  # noqa: PTH116
    except (OSError, ValueError):
        return False


def _from_wheelhouse(environment: Mapping[str, Any], place: Path, lock: int) -> None:
    """Install exactly the wheelhouse's wheels, every hash checked, by uv.

    uv's cache is on the same disk, so that files are linked and not copied, and goes afterwards: one that a cleaner
    of /tmp has thinned out would give broken environments.
    """
    requirements = _requirements(environment)
    _check_python(environment)
    needed = UNPACKED * sum(wheel.stat().st_size for wheel in requirements.parent.glob("*.whl"))
    free = shutil.disk_usage(place.parent).free
    if free < needed:
        sizes = f"{free / 1e9:.1f} GB are free on node {os.uname().nodename}, {needed / 1e9:.1f} GB are needed"
        raise UserError(
            f"node_disk: {place.parent.parent} is too small: {sizes}; name another folder in the site's file"
        )
    uv, cache = _uv(), place.with_name(f"{place.name}.uv")
    shutil.rmtree(cache, ignore_errors=True)
    quietly = ["--quiet", "--no-config", "--offline", "--cache-dir", str(cache)]
    python = str(place / "bin" / "python")
    _run([uv, "venv", *quietly, "--no-project", "--python", str(_python(environment)), str(place)], lock)
    wheels = ["--no-index", "--find-links", str(requirements.parent), "--require-hashes", "--no-build"]
    try:
        _run([uv, "pip", "install", *quietly, "--python", python, *wheels, "--requirement", str(requirements)], lock)
    except UserError:
        # uv's words for a damaged wheel depend on what is damaged in it.
        if bad := damaged(requirements.parent):
            raise UserError(f"{requirements.parent}: {', '.join(bad)}: missing or damaged; {FETCH_AGAIN}") from None
        raise
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _from_site(environment: Mapping[str, Any], place: Path, lock: int) -> None:
    """Install the site's own wheels by name: its pip knows where they lie (PIP_CONFIG_FILE, set by its modules)."""
    _run([str(_python(environment)), "-m", "venv", str(place)], lock)
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "install", "--quiet", "--no-index", *environment["packages"]], lock)


def _check_python(environment: Mapping[str, Any]) -> None:
    """Refuse a Python that the wheels do not fit: uv's own words for that fill a page."""
    fits = re.findall(rf"(?m)^{MADE_WITH} (\d+\.\d+)$", _requirements(environment).read_text(encoding="utf-8"))
    python = _python(environment)
    found = python_version(python)
    if fits and found not in fits:
        remedy = "name the Python that the wheels were fetched for"
        raise UserError(f"environment.python: {python} is Python {found}, the wheelhouse is for {fits[0]}; {remedy}")


def _uv() -> str:
    """uv beside the driver's Python, or on the PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise UserError(f"uv is not beside {sys.executable}, nor on the PATH: run `make install`")
    return found


def _run(command: list[str], lock: int) -> None:
    """Run an installer's step, which inherits the lock: if it outlives this process, it is waited for.

    Raises UserError with its words.
    """
    # The user's settings for uv must not reach it; pip's are the site's way to its wheels.
    settings = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    where = f"the environment could not be made on node {os.uname().nodename}"
    try:
        done = subprocess.run(command, check=False, env=settings, pass_fds=[lock], capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"{where}: {command[0]}: {error.strerror}") from None
    if done.returncode:
        raise UserError(f"{where}: {' '.join((done.stderr or done.stdout).split())[-600:]}")


def _on_path(mode: str) -> str:
    """The Python first on the PATH, where conda or a module has put it."""
    found = shutil.which("python") or shutil.which("python3")
    where = f"environment.mode: {mode!r} on node {os.uname().nodename}"
    if found is None:
        raise UserError(f"{where}: no python is on the PATH; name the site's modules or its conda environment")
    if Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        option = f"--software-deployment-method {'conda' if mode == 'conda' else 'env-modules'}"
        raise UserError(
            f"{where}: {found}, first on the PATH, is the driver's own: nothing was activated; use {option}"
        )
    return found


def _contained(environment: Mapping[str, Any], disk: Path) -> list[str]:
    """`apptainer exec`, with this folder, the code and the node's disk bound in at their own paths."""
    program = shutil.which("apptainer") or shutil.which("singularity")
    where = f"on node {os.uname().nodename}"
    if program is None:
        raise UserError(f"environment.mode: 'apptainer' {where}: neither apptainer nor singularity is on the PATH")
    image = Path(environment["image"])
    if not image.exists():
        raise UserError(f"environment.image: {str(image)!r} is not there {where}; pull it on the login node first")
    here = Path.cwd()
    folders = list(dict.fromkeys([here, Path(__file__).resolve().parents[3], disk]))
    unfit = next((folder for folder in folders if set(str(folder)) & set(":,")), None)
    if unfit:
        raise UserError(f"{unfit}: apptainer cannot bind a folder with ':' or ',' in its name; rename it")
    binds = [word for folder in folders for word in ("--bind", str(folder))]
    nvidia = ["--nv"] if environment["nvidia"] else []
    return [program, "exec", *nvidia, *binds, "--pwd", str(here), str(image), "python3"]
