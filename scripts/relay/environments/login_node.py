"""The software environment of a stack: what a job is to find, and what the login node does for it. Torch-free."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.base.errors import UserError
from relay.base.files import sha256
from relay.environments import wheelhouse
from relay.spec.identity import lock_lines

if TYPE_CHECKING:
    from relay.spec.site import Site


def asked(site: Site | None, stack: str, root: Path, *, device: str = "cpu") -> dict[str, Any]:
    """What a job's processes run with, for `relay.environments.node` and `prepare` here; JSON for `run.json`.

    `site`: None where no scheduler is used: the driver's own environment. `device`: cpu or cuda, the run's.
    Keys: mode, stack, build (of torch), python, wheelhouse, site_wheels, packages, conda, image, modules, nvidia,
    lock_sha256. Raises UserError where the site's file has nothing for this stack.
    """
    lock = root / "envs" / f"{stack}.txt"
    found: dict[str, Any] = {"mode": "current", "stack": stack, "build": None, "python": None, "wheelhouse": None}
    found |= {"site_wheels": False, "packages": [], "conda": None, "image": None, "modules": []}
    found |= {"nvidia": device == "cuda", "lock_sha256": sha256(lock) if lock.is_file() else None}
    if site is None:
        return found
    given = site.environment
    found |= {"mode": given.mode, "build": given.torch, "modules": list(site.modules)}
    if given.mode == "wheels":
        found["site_wheels"] = given.wheels_from == "site"
        found["python"] = _own(given.python) or wheelhouse.base_python()
        if found["site_wheels"]:
            found["packages"] = list(_of_stack(site, "packages", stack))
        else:
            found["wheelhouse"] = str(wheelhouse.order(root, stack, given.torch, _own(given.python)).folder)
    elif given.mode == "conda":
        found["conda"] = conda_of(site, stack, root)
    elif given.mode == "apptainer":
        found["image"] = _own(given.image)
    return found


def _own(path: str | None) -> str | None:
    """A path as the site's file gives it, with `~` as this user's home."""
    return str(Path(path).expanduser()) if path else None


def conda_of(site: Site | None, stack: str, root: Path) -> str | None:
    """An environment's name, or the absolute path of its folder or of a file that creates it.

    In the other modes it is the lock's conda twin: `--lint` then finds the software documented, and Snakemake
    leaves it alone unless `--software-deployment-method conda` is given. None for a stack without a twin.
    """
    if site is None or site.environment.mode != "conda":
        twin = root / "envs" / f"{stack}.yaml"
        return str(twin.resolve()) if twin.is_file() else None
    given: str = _of_stack(site, "conda", stack)
    if "/" not in given and not given.endswith((".yaml", ".yml")):
        return given
    path = Path(given).expanduser()
    path = path if path.is_absolute() else (root / path).resolve()
    if not path.exists():
        raise UserError(f"{site.file}: environment.conda.{stack}: {given!r}: no such file or folder ({path})")
    return str(path)


def conda_directive(site: Site | None, stack: str, root: Path) -> str | None:
    """For a rule's `conda:`: what `conda_of` says.

    None where the site's mode is conda and this machine has none: Snakemake would not even plan. `unready` tells of it,
    and in a job `node_environment.interpreter` does.
    """
    return None if site and unready(site) else conda_of(site, stack, root)


def unready(site: Site) -> list[str]:
    """What is missing on this machine before jobs can have the site's environment, a line for each."""
    if site.environment.mode != "conda" or shutil.which("conda"):
        return []
    module = f" (`module load {' '.join(site.modules)}`)" if site.modules else ""
    return [f"conda: no such command on PATH; load the module that gives it{module} before Snakemake is started"]


def modules_of(site: Site | None) -> list[str]:
    """For a rule's `envmodules:`. None in mode conda, where the driver's shell has loaded them.

    Snakemake activates conda first, purges all modules after that, and loads the rule's: a module that brings conda
    comes too late, and takes the environment away again.
    """
    return [] if site is None or site.environment.mode == "conda" else list(site.modules)


def _of_stack(site: Site, key: str, stack: str) -> Any:
    found = getattr(site.environment, key).get(stack)
    if not found:
        raise UserError(f"{site.file}: environment.{key}: nothing for stack {stack!r}; add {stack}: …")
    return found


def prepare(environment: dict[str, Any], lock: Path) -> dict[str, Any]:
    """Do what the login node has to do for an environment, and return its record.

    Wheels are fetched; the driver's own environment is compared with the lock. What the site itself provides is
    recorded as asked: jobs record the versions that they really find.
    Raises UserError for what cannot be fetched, and for packages that the driver's environment lacks.
    """
    record: dict[str, Any] = {"asked": environment, "lock": lock.name, "lock_sha256": sha256(lock)}
    if environment["mode"] == "current":
        return record | _current(lock)
    if environment["mode"] == "wheels" and not environment["site_wheels"]:
        root = lock.resolve().parent.parent
        wanted = wheelhouse.order(root, environment["stack"], environment["build"], environment["python"])
        place = wheelhouse.fetch(wanted)
        return record | {"wheels": sorted(wheel.name for wheel in place.glob("*.whl"))}
    print(f"mode {environment['mode']}: nothing to fetch; each job records the versions that it finds")
    return record


def _current(lock: Path) -> dict[str, Any]:
    found = describe(lock)
    missing = [name for name in found["differs"] if found["installed"][name] is None]
    if missing:
        raise UserError(f"{lock}: not installed: {', '.join(missing)}; install them with `make install`")
    for name in found["differs"]:
        print(f"note: {name} is {found['installed'][name]}, the lock pins {' or '.join(found['pinned'][name])}")
    return found


def describe(lock: Path) -> dict[str, Any]:
    """The interpreter, the lock's hash, and for each package of the lock the versions pinned and the one installed.

    A lock may pin another version for another Python. Another version than the lock's is recorded, not refused;
    `differs` names those packages.
    """
    pinned: dict[str, list[str]] = {}
    for line in lock_lines(lock):
        name, _, pin = line.partition("==")
        pinned.setdefault(name, []).append(pin)
    installed = {name: _installed(name) for name in pinned}
    # "2.13.0+cpu" is a build of 2.13.0.
    differs = sorted(n for n, found in installed.items() if found is None or found.split("+")[0] not in pinned[n])
    return {
        "lock": lock.name,
        "lock_sha256": sha256(lock),
        "python": platform.python_version(),
        "executable": sys.executable,
        "pinned": pinned,
        "installed": installed,
        "differs": differs,
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
