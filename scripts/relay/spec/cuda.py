"""Builds of torch for CUDA: the versions that are pinned, and the GPUs and drivers that they are for.

Sources: NVIDIA's table of minor version compatibility (drivers), and the lists of compute capabilities that PyTorch's
releases are compiled for. CUDA 13 has left out Pascal and Volta; PyTorch's builds for CUDA 12.8 had done so before.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from relay.spec.arithmetic import COMPUTE_CAPABILITY, compute_capability
from relay.spec.versions import release

Generation = Literal["pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"]
GENERATIONS: tuple[Generation, ...] = get_args(Generation)  # the oldest first
# The oldest driver for each major version of CUDA.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
# The oldest torch whose builds have code for a generation, where it is above what strategies need anyway.
OLDEST_TORCH: dict[str, str] = {"hopper": "2.3", "blackwell": "2.7"}
# The compute capability from which on a generation is counted.
CAPABILITY: dict[Generation, tuple[int, int]] = {
    "pascal": (6, 0), "volta": (7, 0), "turing": (7, 5), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0),
    "blackwell": (10, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Build:
    """A build of torch: its CUDA, the oldest and the newest GPUs that it has code for, and what is pinned of it.

    `torch` and `torchvision` are None for the package registry's build, whose versions are the lock's.
    """

    cuda: str
    oldest: Generation
    newest: Generation
    torch: str | None = None
    torchvision: str | None = None


# Those with the lock's torch first: the order of choice for `torch: auto`.
BUILDS = {
    "cuda": Build("13.0", "turing", "blackwell"),
    "cu130": Build("13.0", "turing", "blackwell", "2.13.0", "0.28.0"),
    "cu126": Build("12.6", "pascal", "hopper", "2.13.0", "0.28.0"),
    "cu128": Build("12.8", "turing", "blackwell", "2.11.0", "0.26.0"),
    "cu124": Build("12.4", "pascal", "hopper", "2.6.0", "0.21.0"),
    "cu118": Build("11.8", "pascal", "hopper", "2.7.1", "0.22.1"),
}


def of_an_index(build: str) -> bool:
    """Whether a build of torch is one of PyTorch's own indexes."""
    return build in BUILDS and BUILDS[build].torch is not None


def index(build: str) -> str:
    """The address of PyTorch's own index of a build, or of `cpu`; the package registry has only one for CUDA."""
    return f"https://download.pytorch.org/whl/{build}"


def of_modules(modules: Iterable[str]) -> str | None:
    """The version of CUDA that environment modules name, such as 12.2 of `cuda/12.2` or `cuda/12.2.1`; else None."""
    named = (re.search(r"(?:^|/)cuda(?:core|toolkit)?/v?(\d+\.\d+)", module) for module in modules)
    return next((match[1] for match in named if match), None)


def generation_of(gpu_name: str | None) -> Generation | None:
    """The generation of a GPU by its name on a cluster; None where the name does not tell."""
    capability = compute_capability(gpu_name)
    return None if capability is None else _generation(capability)


def _generation(capability: tuple[int, int]) -> Generation:
    return next(generation for generation in reversed(GENERATIONS) if CAPABILITY[generation] <= capability)


def capabilities(gpus: Iterable[tuple[str | None, Generation | None]], build: str | None = None) -> tuple[str, ...]:
    """The compute capabilities for which CUDA code is compiled, in ascending order; none where that is not known.

    `gpus` are the names and generations of the GPUs that there are. `build` is the build of torch that the code is for,
    where it is known: all of its capabilities count where a GPU's are not known, and no other ones.
    """
    possible = _of_build(build) if build in BUILDS else None
    covered: set[tuple[int, int]] = set()
    for name, generation in gpus:
        capability = compute_capability(name)
        if capability and generation in (None, _generation(capability)):
            covered.add(capability)
        else:
            covered |= _of(generation) if generation else possible or set()
    return tuple(f"{major}.{minor}" for major, minor in sorted(covered if possible is None else covered & possible))


def _of_build(build: str) -> set[tuple[int, int]]:
    oldest, newest = (GENERATIONS.index(each) for each in (BUILDS[build].oldest, BUILDS[build].newest))
    return {each for generation in GENERATIONS[oldest : newest + 1] for each in _of(generation)}


def _of(generation: Generation) -> set[tuple[int, int]]:
    return {each for each in COMPUTE_CAPABILITY.values() if _generation(each) == generation}


def problem(build: str, generation: str | None, driver: str | None) -> str | None:
    """Why a build does not run on such GPUs, or with such a driver; None where it does, or nothing is known."""
    if (why := _unfit(build, generation, driver)) is None:
        return None
    fitting = [each for each in BUILDS if _unfit(each, generation, driver) is None]
    remedy = f"allowed: {', '.join(fitting)}" if fitting else "no build does"
    return f"{why}; {remedy}"


def _unfit(build: str, generation: str | None, driver: str | None) -> str | None:
    facts = BUILDS[build]
    name = f"torch's build {build} (CUDA {facts.cuda})"
    oldest, newest = GENERATIONS.index(facts.oldest), GENERATIONS.index(facts.newest)
    if generation and not oldest <= GENERATIONS.index(generation) <= newest:
        return f"{name} has no code for GPUs of the generation {generation}"
    least = OLDEST_DRIVER[int(facts.cuda.split(".")[0])]
    if driver and release(driver)[0] < least:
        return f"{name} needs NVIDIA's driver {least} or newer, nvidia_driver is {driver}"
    return None


def chosen(generations: Iterable[str | None], driver: str | None) -> str | None:
    """The build for `torch: auto`, for all of these GPUs and the driver; None where no build is for all of them."""
    wanted = [*generations, None]  # the driver counts also without GPUs
    fitting = (build for build in BUILDS if not any(_unfit(build, each, driver) for each in wanted))
    return next(fitting, None)
