"""Which torch a setting's jobs will have, as far as it is known before any job starts."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from relay.environments.locks import base, is_recorded, pinned
from relay.spec import cuda
from relay.spec.identity import lock_lines
from relay.spec.partition import Partition
from relay.spec.requirements import Requirements
from relay.spec.site import Site
from relay.spec.versions import too_old


def torch_version(site: Site | None, stack: str, lock: Path, installed: str | None) -> str | None:
    """The version of torch in a stack's environment; None where only the jobs can tell.

    `installed` is the version that the driver's environment has.
    """
    if site is None or site.environment.mode == "current":
        return installed
    declared = site.environment
    if is_recorded(stack) and declared.mode == "wheels":
        return pinned(lock.read_text(encoding="utf-8"), "torch")
    if declared.torch_version:
        return declared.torch_version
    named = declared.packages.get(base(stack), []) if declared.wheels_from == "site" else []
    if declared.mode == "wheels" and declared.wheels_from == "download" and lock.is_file():
        named = lock_lines(lock)
    return next((line.removeprefix("torch==") for line in named if line.startswith("torch==")), None)


def unfit(site: Site, partition: Partition, torch: str | None) -> Iterator[str]:
    """Why the site's build of torch cannot run on a partition's GPUs, as far as both are declared.

    `torch` is its version, None where only the jobs can tell. `cuda` says only of wheels that are downloaded which CUDA
    it is.
    """
    if partition.device != "cuda":
        return
    declared, build, generation = site.environment, site.torch_build, partition.generation
    downloaded = declared.mode == "wheels" and declared.wheels_from == "download"
    known = build in cuda.BUILDS and (build != "cuda" or downloaded)
    if known and (problem := cuda.problem(build, generation, site.nvidia_driver)):
        yield f"{site.file}: environment.torch: {problem}"
    if torch and generation and (problem := too_old("torch", torch, cuda.OLDEST_TORCH.get(generation, "0"))):
        yield f"{partition.shown}: its GPUs (generation {generation}): {problem}"


def problems(needs: Requirements, strategy: str, torch: str | None, site: Site | None) -> Iterator[str]:
    """Why a strategy cannot run with that torch, or with the driver's Python where the jobs use it."""
    found = {"torch": (torch, needs.least_torch)}
    if site is None or site.environment.mode == "current":
        found["python"] = (platform.python_version(), needs.least_python)
    for name, (version, least) in found.items():
        if version and (problem := too_old(name, version, least)):
            yield f"{strategy} {problem}"
