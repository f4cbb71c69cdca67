"""Which torch a setting's jobs will have, as far as it is known before any job starts."""

import platform
from collections.abc import Iterator
from pathlib import Path

from relay.base.errors import UserError
from relay.environments import login_node, wheelhouse
from relay.environments.locks import base, is_recorded, pinned, read
from relay.spec import cuda
from relay.spec.arithmetic import without_tensor_cores
from relay.spec.requirements import Requirements
from relay.spec.setting import TF32
from relay.spec.site import Site
from relay.spec.site_blocks import Partition
from relay.spec.versions import lacking, names_in, too_old


def torch_version(site: Site | None, stack: str, lock: Path, installed: str | None) -> str | None:
    """The version of torch in a stack's environment; None where only the jobs can tell.

    `installed` is the version that the driver's environment has.
    """
    if site is None or site.environment.source == "current":
        return installed
    declared = site.environment
    locked = declared.source == "wheels" and lock.is_file()
    if locked or (declared.source == "site" and is_recorded(stack)):
        return pinned(read(lock), "torch")
    named = declared.packages.get(base(stack), []) if declared.source == "site" else []
    exact = (text.removeprefix("torch==") for text in named if text.startswith("torch=="))
    return declared.torch_version or next(exact, None)


def unfit(site: Site, partition: Partition, torch: str | None, precision: str) -> Iterator[str]:
    """Why the site's build of torch cannot run on a partition's GPUs, or they not in a precision, as far as declared.

    `torch` is its version, None where only the jobs can tell.
    """
    if partition.device != "cuda":
        return
    declared, build, generation = site.environment, site.torch_build, partition.generation
    if build == "cpu" and declared.source == "wheels":
        fit = [name for name in cuda.BUILDS if not cuda.problem(name, generation, site.nvidia_driver)]
        yield f"{site.file}: environment.torch: cpu has no code for GPUs; allowed: auto, {', '.join(fit)}"
    if cuda_of(site) and (problem := cuda.problem(build, generation, site.nvidia_driver)):
        yield f"{site.file}: environment.torch: {problem}"
    if torch and generation and (problem := too_old("torch", torch, cuda.OLDEST_TORCH.get(generation, "0"))):
        yield f"{partition.shown}: its GPUs (generation {generation}): {problem}"
    if precision in TF32 and partition.capability and (slow := without_tensor_cores(precision, partition.capability)):
        yield f"{partition.shown}: {slow}; use fp32"


def cuda_of(site: Site) -> str | None:
    """The CUDA that torch's build is for, as far as the site's file tells it: `cuda` does so of downloaded wheels only.

    Other modes have the build that somebody else has installed.
    """
    declared, build = site.environment, site.torch_build
    is_told = build in cuda.BUILDS and (build != "cuda" or declared.source == "wheels")
    return cuda.BUILDS[build].cuda if is_told else None


def other_cuda(site: Site, stack: str) -> Iterator[str]:
    """Warn of a stack's jobs that load another CUDA than torch's build is for, as far as both are declared."""
    loaded, own = cuda.of_modules([*site.modules, *site.stack_modules.get(base(stack), [])]), cuda_of(site)
    if loaded and own and loaded != own:
        yield (
            f"loads CUDA {loaded}, torch's build {site.torch_build} is for CUDA {own}: what is compiled for this torch "
            f"needs its own version; name cuda/{own} under modules or stack_modules of {site.file}, or none"
        )


def problems(needs: Requirements, strategy: str, torch: str | None, site: Site | None) -> Iterator[str]:
    """Why a strategy cannot run with that torch, or with the Python that the jobs use, where it is known."""
    versions = {"torch": (torch, needs.least_torch), "python": (_python(site), needs.least_python)}
    for name, (version, least) in versions.items():
        if version and (problem := too_old(name, version, least)):
            yield f"{strategy} {problem}"


def _python(site: Site | None) -> str | None:
    """The version of the jobs' Python: the driver's own, or the one that nodes make environments with."""
    if site is None or site.environment.source == "current":
        return platform.python_version()
    if site.environment.source not in ("wheels", "site"):
        return None
    try:
        return wheelhouse.version_of(Path(login_node.python_of(site)))
    except UserError:  # told elsewhere
        return None


def missing_packages(needs: Requirements, strategy: str, site: Site | None, stack: str, lock: Path) -> Iterator[str]:
    """What a strategy needs and a cluster's own wheels have not, as far as their versions are recorded."""
    if site is None or not is_recorded(stack) or site.environment.source != "site":
        return
    entries = read(lock)
    versions = {name: pinned(entries, name) for name in names_in(needs.packages)}
    for problem in lacking(needs.packages, versions):
        yield (
            f"{strategy} {problem} ({lock}); name it under environment.packages.{base(stack)} of {site.file}, if the "
            "cluster has it"
        )
