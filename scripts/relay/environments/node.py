"""The Python that a job's processes run with: found on the node, or built on the node's own disk.

`prepare` runs once on each node, in the driver's Python, and needs no network. After that, each rank calls
`interpreter`. Both read the `environment` of a run's job, as `login_node.environment_of` describes it. Its keys used
here are `mode`, `stack`, `python`, `overlay`, `wheelhouse`, `site_wheels`, `packages`, `conda_folder`, `image`,
`modules`, `stack_modules` and `nvidia`.
This module does not import torch, because torch need not be installed where it runs.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.environments import installer, overlay, pip, versioned
from relay.environments.locks import is_recorded, lock_of
from relay.environments.node_folder import HERE, in_one_line, noexec, own_folder
from relay.environments.wheelhouse import MADE_WITH, REQUIREMENTS, base_python, damaged, version_of

FETCH_AGAIN = "have it fetched on the login node: `snakemake --profile … --forcerun environment`"


def needs_preparation(environment: Mapping[str, Any]) -> bool:
    """Whether `prepare` has something to do on each node before the ranks start."""
    return bool(environment["mode"] == "wheels")


def interpreter(environment: Mapping[str, Any], disk: Path) -> list[str]:
    """The words that start a job's Python on this node; the program and its arguments follow them.

    Raises UserError where this node lacks that Python, or has only the driver's and the mode asks for another.
    """
    mode, folder = environment["mode"], environment.get("conda_folder")
    _check_modules(environment)
    if mode == "current":
        place = environment.get("overlay")
        return [overlay.interpreter(Path(place)) if place else sys.executable]
    if mode == "wheels":
        with in_one_line(disk):
            python = versioned.interpreter(place := _place(environment, disk))
        if python is None:
            raise UserError(f"no environment at {place} {HERE}: it was not prepared there")
        return [python]
    if mode == "conda" and folder:
        # It works without conda, too.
        if os.access(own := Path(folder) / "bin" / "python", os.X_OK):
            return [str(own)]
        lacks = f"{folder} has no bin/python; create it, on a disk that the nodes see"
        raise UserError(f"environment.mode: 'conda' {HERE}: {lacks}")
    if mode == "apptainer":
        return _contained(environment, disk)
    return [_on_path(mode, environment.get("conda"))]


def prepare(environment: Mapping[str, Any], disk: Path) -> None:
    """Install the environment of mode `wheels` on this node's disk, unless a complete one is there. No other mode acts.

    Raises UserError for a missing wheelhouse, an unfit Python, a full or broken disk, and a failed installer.
    """
    if not needs_preparation(environment):
        return
    _check_modules(environment)
    install = _from_site if environment["site_wheels"] else _from_wheelhouse
    with in_one_line(disk):
        if noexec(disk):
            problem = f"node_disk: {disk} {HERE} is mounted noexec, so that no library there can be loaded"
            raise UserError(f"{problem}; name another folder in the site's file")
        versioned.have(_place(environment, disk), partial(install, environment), stack=environment["stack"])


def _check_modules(environment: Mapping[str, Any]) -> None:
    """Raise UserError where a module of the site is not loaded: Snakemake does not stop when `module load` fails."""
    wanted = [*environment.get("modules", []), *environment.get("stack_modules", [])]
    loaded = [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name]
    for name in wanted:
        # Lmod completes a name: python/3.11 becomes python/3.11.5.
        if not any(module == name or module.startswith((f"{name}/", f"{name}.")) for module in loaded):
            where = f"not loaded {HERE} (loaded: {', '.join(loaded) or 'none'})"
            remedy = "read what `module load` printed above, and name the module as `bash -c 'module list'` does there"
            raise UserError(f"modules: {name!r} is {where}; {remedy}")


def _place(environment: Mapping[str, Any], disk: Path) -> Path:
    """The link to the environment, in this user's folder. Its name is a hash of what is installed and its Python."""
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
        raise UserError(f"no wheelhouse at {path.parent} {HERE}; {FETCH_AGAIN}")
    return path


def _python(environment: Mapping[str, Any]) -> Path:
    """The Python that the environment is made with: the declared one, or the base of the driver's own environment."""
    python = Path(environment["python"] or base_python())
    if not os.access(python, os.X_OK) or python.is_dir():
        raise UserError(f"environment.python: {str(python)!r} is not a program {HERE}; name a Python that is there")
    return python


def _from_wheelhouse(environment: Mapping[str, Any], place: Path, lock: int) -> None:
    """Install exactly the wheels of the wheelhouse.

    Raises UserError for a Python that the wheels do not fit, a disk that is too small, damaged wheels, and a failed
    installation.
    """
    requirements, python = _requirements(environment), _python(environment)
    fits = re.search(rf"(?m)^{MADE_WITH} (\d+\.\d+)$", requirements.read_text(encoding="utf-8"))
    if fits and (version := version_of(python)) != fits[1]:  # uv's own message would fill a page
        remedy = "name the Python that the wheels were fetched for"
        raise UserError(f"environment.python: {python} is Python {version}, the wheelhouse is for {fits[1]}; {remedy}")
    try:
        installer.install(requirements.parent, requirements, python, place, [lock])
    except UserError:
        # uv reports a damaged wheel in many different ways, so the hashes decide which message the user sees.
        if bad := damaged(requirements.parent):
            raise UserError(f"{requirements.parent}: {', '.join(bad)}: missing or damaged; {FETCH_AGAIN}") from None
        raise


def _from_site(environment: Mapping[str, Any], place: Path, lock: int) -> None:
    """Install the site's own wheels by name. Its modules set PIP_CONFIG_FILE, so that pip finds them."""
    installer.run([str(_python(environment)), "-I", "-m", "venv", str(place)], [lock], place=place)
    words = [str(place / "bin" / "python"), "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    words += pip.into(place)
    try:
        installer.run([*words, "--quiet", "--no-index", *environment["packages"]], [lock], place=place)
    except UserError as error:
        if not is_recorded(environment["stack"]):
            raise
        where = f"these versions were recorded in {lock_of(Path(), environment['stack'])}"
        raise UserError(f"{error}; {where}: delete the lock to begin again with today's") from None


def _on_path(mode: str, conda: str | None) -> str:
    """The first Python on the PATH, where a module has put it, or the conda environment of this name.

    Raises UserError where there is none, or where it is the driver's.
    """
    python = shutil.which("python") or shutil.which("python3")
    where = f"environment.mode: {mode!r} {HERE}"
    if python is None:
        raise UserError(f"{where}: no python is on the PATH; name the site's modules or its conda environment")
    if Path(python).parent.resolve() == Path(sys.executable).parent.resolve():
        if mode == "conda":
            raise UserError(
                f"environment.conda: {conda!r} is not active {HERE}: the first python on the PATH is still the "
                "driver's; the node needs a `conda` (name its module under `modules`), and `conda env list` there has "
                "to show this name; or give the environment's folder"
            )
        remedy = "use --software-deployment-method env-modules"
        raise UserError(f"{where}: {python}, first on the PATH, is the driver's own: nothing was activated; {remedy}")
    return python


def _contained(environment: Mapping[str, Any], disk: Path) -> list[str]:
    """The words of `apptainer exec`. This folder, the code and the node's disk keep their paths in the container.

    Raises UserError where the program or the image is missing, and for a folder that apptainer cannot bind.
    """
    program = shutil.which("apptainer") or shutil.which("singularity")
    if program is None:
        raise UserError(f"environment.mode: 'apptainer' {HERE}: neither apptainer nor singularity is on the PATH")
    image = Path(environment["image"])
    if not image.exists():
        raise UserError(f"environment.image: {str(image)!r} is not there {HERE}; pull it on the login node first")
    here = Path.cwd()
    folders = list(dict.fromkeys([here, Path(__file__).resolve().parents[3], disk]))
    unfit = next((folder for folder in folders if set(str(folder)) & set(":,")), None)
    if unfit:
        raise UserError(f"{unfit}: apptainer cannot bind a folder with ':' or ',' in its name; rename it")
    binds = [word for folder in folders for word in ("--bind", str(folder))]
    nvidia = ["--nv"] if environment["nvidia"] else []
    return [program, "exec", *nvidia, *binds, "--pwd", str(here), str(image), "python3"]
