"""The software environment of a stack: what its jobs need, and what the login node prepares. Does not import torch."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.base.files import sha256
from relay.base.grouped import gathered
from relay.environments import conda, overlay, versioned, wheelhouse
from relay.environments.locks import RECORDED, base, is_recorded, lock_of, names_and_versions

if TYPE_CHECKING:
    from relay.spec.site import Site


def environment_of(
    site: Site | None, stack: str, root: Path, *, device: str = "cpu", program: str | None = None
) -> dict[str, Any]:
    """The description of the environment that a job's processes run in, ready to be written into `run.json`.

    Both `prepare` and `relay.environments.node` read it. `site` is None for runs without a scheduler: they use the
    driver's own environment. `device` is the run's, cpu or cuda. `program`: what else the job runs, libtorch.
    Keys: mode, stack, build (of torch), python, overlay (of the driver's environment, for mode current), wheelhouse,
    site_wheels, packages, conda (as declared), conda_folder (in mode conda; None for a name), image, modules,
    stack_modules, nvidia, lock_sha256, arch_list (what CUDA code is built for), and with `program` also its flags:
    compile_flags, link_flags.
    Raises UserError where the site's file has no entry for this stack.
    """
    lock = lock_of(root, stack)
    source = site.environment.source if site else "current"
    described: dict[str, Any] = {"mode": site.environment.mode if site else "current", "stack": stack}
    described |= {"site_wheels": source == "site", "build": site.torch_build if site else None}
    described |= dict.fromkeys(("python", "overlay", "wheelhouse", "conda", "image"))
    described |= {"packages": [], "modules": modules_of(site), "stack_modules": stack_modules(site, stack, program)}
    described |= {"nvidia": device == "cuda", "lock_sha256": sha256(lock) if lock.is_file() else None}
    described |= {"arch_list": site.cuda_arch_list if site else None}
    described |= dict(site.libtorch) if site and program else {}
    if site is None or source == "current":
        place = overlay.place(lock)
        return described | {"overlay": str(place) if place else None}
    if source == "wheels":
        wanted = wheelhouse.order(root, stack, site.torch_build, _own(site.environment.python), site.cuda_arch_list)
        return described | {"python": python_of(site), "wheelhouse": str(wanted.folder)}
    if source == "site":
        return described | {"python": python_of(site), "packages": _site_wheels(site, stack, lock)}
    if source == "conda":
        declared = conda_of(site, stack, root)
        folder = conda.folder_of(declared)
        return described | {"conda": declared, "conda_folder": str(folder) if folder else None}
    return described | {"image": _own(site.environment.image) if source == "apptainer" else None}


def python_of(site: Site) -> str:
    """The Python that the nodes' virtual environments are made with."""
    return _own(site.environment.python) or wheelhouse.base_python()


def _site_wheels(site: Site, stack: str, lock: Path) -> list[str]:
    """What a node asks the site's pip for: the recorded versions, or the names alone where none are recorded yet."""
    if is_recorded(stack) and lock.is_file():
        return [line.replace("==", "===") for line in names_and_versions(lock)]
    return list(_of_stack(site, "packages", stack))


def _own(path: str | None) -> str | None:
    """A path of the site's file, with `~` expanded to this user's home."""
    return str(Path(path).expanduser()) if path else None


def conda_of(site: Site, stack: str, root: Path) -> str:
    """The stack's environment in mode conda: its name, the whole path of its folder, or of a file that creates it.

    Raises UserError for a path that does not exist.
    """
    if is_recorded(stack):
        return str(RECORDED.resolve() / f"{stack}.yaml")
    declared: str = _of_stack(site, "conda", stack)
    if "/" not in declared and not conda.creates(declared):
        return declared
    path = Path(declared).expanduser()
    path = path if path.is_absolute() else (root / path).resolve()
    if not path.exists():
        raise UserError(f"{site.file}: environment.conda.{stack}: {declared!r}: no such file or folder ({path})")
    return str(path)


def conda_directive(site: Site | None, stack: str, root: Path) -> str | None:
    """The value of a rule's `conda:`, the conda version of the lock; None in mode conda, or without such a file.

    It documents the software for `snakemake --lint`. Snakemake uses it only with `--software-deployment-method conda`.
    """
    conda_lock = root / "envs" / f"{stack}.yaml"
    in_conda = site is not None and site.environment.mode == "conda"
    return str(conda_lock.resolve()) if conda_lock.is_file() and not in_conda else None


def unready(site: Site) -> list[str]:
    """What this machine lacks before jobs can use the site's environment, one line for each thing."""
    image = _own(site.environment.image) if site.environment.mode == "apptainer" else None
    if image and not Path(image).exists():
        return [f"{site.file}: environment.image: {image!r} is not there; pull it, to a disk that the nodes see"]
    return []


def undeployed(site: Site | None, methods: Collection[str]) -> list[str]:
    """What the jobs would be without, because Snakemake was told to use these methods alone; one line, or none."""
    needed = "env-modules"
    if site is None or needed in methods or not (site.modules or any(site.stack_modules.values())):
        return []
    named = f"modules: {', '.join(site.modules) or 'of stacks'}"
    order = f"was told to use {', '.join(sorted(methods))} alone" if methods else "was not told to"
    return [f"{site.file}: {named}: Snakemake has to load them, and {order}; add --software-deployment-method {needed}"]


def modules_of(site: Site | None) -> list[str]:
    """The value of a rule's `envmodules:`."""
    return list(site.modules) if site else []


def stack_modules(site: Site | None, stack: str, program: str | None = None) -> list[str]:
    """The modules that a job loads after the site's own: those of its stack, and of what it runs beside Python."""
    declared = site.stack_modules if site else {}
    named = [*declared.get(base(stack), []), *(declared.get(program, []) if program else [])]
    return list(dict.fromkeys(named))


def load_command(modules: Sequence[str], environment: Mapping[str, Any] | None = None) -> str:
    """The beginning of a shell's command that loads modules, then activates the conda environment of a job.

    It goes on without what cannot be had. The job's processes find out (`relay.environments.node`), and say so in one
    line. `environment` is that of `environment_of`.
    """
    steps = [f"module load {shlex.join(modules)}"] if modules else []
    if environment and environment["mode"] == "conda":
        steps.append(conda.activation(environment["conda_folder"] or environment["conda"]))
    return f"set +u; {' || true; '.join([*steps, 'set -u; '])}" if steps else ""


def modules_of_build(site: Site | None, stack: str) -> list[str]:
    """The modules with which the login node builds a stack's packages: all of its jobs, if it has its own."""
    own = stack_modules(site, stack)
    if site is not None and site.environment.mode == "conda":
        return modules_of(site)  # they give conda, by which an environment may have to be created
    if site is None or not own or site.environment.mode not in ("wheels", "current"):
        return []  # nothing is built
    return list(dict.fromkeys([*modules_of(site), *own]))


def _of_stack(site: Site, key: str, stack: str) -> Any:
    entry = getattr(site.environment, key).get(base(stack))
    if not entry:
        raise UserError(f"{site.file}: environment.{key}: nothing for stack {base(stack)!r}; add {base(stack)}: …")
    return entry


def prepare(environment: dict[str, Any], lock: Path) -> dict[str, Any]:
    """Prepare an environment on the login node, and return a record of it.

    Mode `wheels` fetches the wheels. Mode `current` compares the driver's own environment with the lock. Mode `conda`
    creates an environment that a file declares. Else nothing is prepared: the site provides the software, and each job
    records the versions that it finds.
    Raises UserError for wheels that cannot be fetched, for packages that the driver's environment lacks, and where
    conda fails.
    """
    record: dict[str, Any] = {"asked": environment, "lock": lock.name, "lock_sha256": sha256(lock)}
    if environment["mode"] == "current":
        own = overlay.make(lock, environment.get("arch_list")) if environment["overlay"] else None
        return record | _current(lock, own)
    if environment["mode"] == "wheels" and not environment["site_wheels"]:
        root = ROOT if is_recorded(lock.stem) else lock.resolve().parent.parent
        named = (environment[key] for key in ("stack", "build", "python", "arch_list"))
        wanted = wheelhouse.order(root, *named)
        place = wheelhouse.fetch(wanted)
        return record | {"wheels": sorted(wheel.name for wheel in place.glob("*.whl"))}
    if environment["mode"] == "conda" and conda.creates(environment["conda"]):
        folder = Path(environment["conda_folder"])
        conda.create(Path(environment["conda"]), folder)
        return record | _beside_lock(lock, [str(versioned.site_packages(folder))])
    print(f"mode {environment['mode']}: nothing to fetch; each job records the versions that it finds")
    return record


def lost(environment: Mapping[str, Any]) -> str:
    """Of what `prepare` has made: from where files are gone, as scratch disks delete old ones; '' where all are there.

    It is asked at each call, so that no content is read.
    """
    if environment["overlay"]:
        place, whole = environment["overlay"], versioned.is_whole(Path(environment["overlay"]))
    elif environment["wheelhouse"]:
        place, whole = environment["wheelhouse"], wheelhouse.has_files(Path(environment["wheelhouse"]))
    elif environment["mode"] == "conda" and conda.creates(environment["conda"]):
        place, whole = environment["conda_folder"], conda.is_whole(Path(environment["conda_folder"]))
    else:
        return ""
    return "" if whole else f"is no longer true: files are gone from {place}"


def _current(lock: Path, own: Path | None) -> dict[str, Any]:
    """The interpreter, and what `_beside_lock` tells. Raises UserError for packages that are not installed.

    `own` is the overlay of the driver's environment that the stack has, if it has one.
    """
    versions = _beside_lock(lock, [str(versioned.site_packages(own)), *sys.path] if own else sys.path)
    if missing := sorted(name for name, version in versions["installed"].items() if version is None):
        raise UserError(f"{lock}: not installed: {', '.join(missing)}; install them with `make install`")
    executable = str(own / "bin" / "python") if own else sys.executable
    return {"python": platform.python_version(), "executable": executable} | versions


def _beside_lock(lock: Path, path: list[str]) -> dict[str, Any]:
    """The versions pinned and installed, in these folders, of each package in the lock; which `differ` is told.

    A package can have several pinned versions, one for each Python.
    """
    pinned = gathered((name, pin) for name, pin in (line.split("==") for line in names_and_versions(lock)))
    # Of several folders that have a package, the first counts, as for an import.
    installed = {name: next((each.version for each in distributions(name=name, path=path)), None) for name in pinned}
    # "2.13.0+cpu" is a build of 2.13.0.
    differs = sorted(name for name, pins in pinned.items() if (installed[name] or pins[0]).split("+")[0] not in pins)
    for name in differs:
        print(f"note: {name} is {installed[name]}, the lock pins {' or '.join(pinned[name])}")
    return {"pinned": pinned, "installed": installed, "differs": differs}
