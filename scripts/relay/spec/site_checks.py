"""What is wrong in a cluster's file, a line for each mistake: keys that contradict each other, and unfit texts.

Texts become part of commands: each has a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from relay.spec import cuda
from relay.spec.job import FLAG
from relay.spec.messages import show
from relay.spec.versions import VERSION

if TYPE_CHECKING:
    from relay.spec.site import Site


def contradictions(site: Site) -> Iterator[str]:
    """A line for each pair of keys that cannot both hold."""
    yield from _of_partitions(site)
    if (site.openmp.places or site.openmp.bind) and not site.confines_cpus:
        # Without confinement, all processes of a node would be bound to the same cores.
        yield "openmp: places and bind are not allowed with confines_cpus: false; leave them out, or set it to true"
    if site.mail_user and not site.mail_type:
        yield f"mail_user: {show(site.mail_user)} gets no mail without mail_type; give both, such as [END, FAIL]"
    yield from _of_torch(site)
    yield from _of_packages(site)


def _of_partitions(site: Site) -> Iterator[str]:
    for i, p in enumerate(site.partitions):
        place = f"partitions[{i}]"
        if p.device == "cuda" and not p.gpus_per_node:
            yield f"{place}.gpus_per_node: 0 is not allowed with device: cuda; allowed: at least 1"
        if p.device == "cpu" and (p.gpus_per_node or p.gpu_name):
            yield f"{place}.device: cpu is not allowed with gpus_per_node or gpu_name; allowed: cuda"
        named = cuda.generation_of(p.gpu_name)
        if p.gpu_generation and named and p.gpu_generation != named:
            yield (
                f"{place}.gpu_generation: {show(p.gpu_generation)} is not allowed with gpu_name: {p.gpu_name}, which "
                f"is of the generation {named}; leave it out"
            )
        if site.min_minutes and p.max_minutes and site.min_minutes > p.max_minutes:
            yield (
                f"{place}.max_minutes: {p.max_minutes} is not allowed with min_minutes: {site.min_minutes}, the "
                "shortest job; allowed: at least as much"
            )
        first = [each.slurms for each in site.partitions].index(p.slurms)
        if p.limits != site.partitions[first].limits:
            yield f"{place}.limits: differ from partitions[{first}].limits, and both are {p.shown}"


def _of_torch(site: Site) -> Iterator[str]:
    e = site.environment
    gpus = [p.generation for p in site.partitions if p.device == "cuda"]
    if e.torch == "auto" and gpus and cuda.chosen(gpus, site.nvidia_driver) is None:
        present = f"{', '.join(sorted({str(each) for each in gpus}))}; driver {site.nvidia_driver}"
        yield f"environment.torch: auto is not allowed: no build of torch is for all GPUs ({present}); name one"
    downloaded = e.source == "wheels"
    if e.torch_version and (downloaded or e.mode == "current"):
        whose = "the lock's" if downloaded else "that of the driver's environment"
        yield (
            f"environment.torch_version: {show(e.torch_version)} is not allowed with mode: {e.mode}, whose torch is "
            f"{whose}; leave it out"
        )


def _of_packages(site: Site) -> Iterator[str]:
    e = site.environment
    if e.mode == "conda" and not e.conda:
        yield "environment.conda: missing with mode: conda; allowed: {stack: name, folder or file}"
    if e.mode == "apptainer" and not e.image:
        yield "environment.image: missing with mode: apptainer; allowed: the path of an image"
    if e.mode == "modules" and not site.modules:
        yield "modules: missing with environment.mode: modules; allowed: the modules that give `python` with torch"
    if e.source == "site" and not e.packages:
        yield "environment.packages: missing with wheels_from: site; allowed: {stack: [packages]}"
    if e.source == "wheels" and e.packages:
        yield (
            "environment.packages: not allowed with wheels_from: download, which installs the lock's; allowed: "
            "wheels_from: site"
        )


NAME = ("letters, digits and . _ + -", r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# What Snakemake's Slurm plugin takes as the type of a GPU.
GRES_TYPE = ("letters, digits, . and _ with gpu_request: gres", r"[A-Za-z0-9_.]+")
FILE_NAME = ("letters, digits and . _ -", r"[A-Za-z0-9][A-Za-z0-9._-]*")
CONSTRAINT = ("features, with & | * ( ) [ ]", r"[A-Za-z0-9._+&|*()\[\]-]+")
MAIL = ("an address such as name@example.org", r"[A-Za-z0-9._+-]+(@[A-Za-z0-9.-]+)?")
INTERFACE = ("an interface such as bond0", r"[A-Za-z0-9._:-]+")
MODULE = ("a module such as python/3.11", r"[A-Za-z0-9][A-Za-z0-9._+/-]*")
PACKAGE = ("a package such as torch or torch==2.9.1", r"[A-Za-z0-9][A-Za-z0-9._-]*((==|~=|>=|<=|<|>)[A-Za-z0-9.*+!]+)?")
DISK = ("a folder or a variable, such as /tmp or $SLURM_TMPDIR/relay", r"[/$][A-Za-z0-9._/${}-]*")
CAPABILITIES = ("compute capabilities such as 8.0;9.0", r"[0-9]+\.[0-9](\+PTX)?(;[0-9]+\.[0-9](\+PTX)?)*")
PATH = ("a name or a path of letters, digits, blanks and . _ / + - @ ~ : , = %", r"(?!-)[\w./+@~:,=% -]+")


def unfit_texts(site: Site) -> Iterator[str]:
    """A line for each text that has other characters than are allowed."""
    for key, value, (allowed, pattern) in _texts(site):
        if value is not None and not re.fullmatch(pattern, value):
            yield f"{key}: {show(value)} is not allowed; allowed: {allowed}"


def _texts(site: Site) -> Iterator[tuple[str, str | None, tuple[str, str]]]:
    """Each text: its key, its value, and what is allowed, in words and as a pattern."""
    yield "name", site.name, FILE_NAME
    for key in ("account", "qos", "reservation"):
        yield key, getattr(site, key), NAME
    yield "constraint", site.constraint, CONSTRAINT
    yield "mail_user", site.mail_user, MAIL
    yield "node_disk", site.node_disk, DISK
    yield "nvidia_driver", site.nvidia_driver, ("a version such as 550.54.15", r"[1-9][0-9]{2}(\.[0-9]+){0,2}")
    yield "network_interface", site.network_interface, INTERFACE
    yield "openmp.stack", site.openmp.stack, ("a size such as 512m", r"[1-9][0-9]*[BbKkMmGg]?")
    for i, partition in enumerate(site.partitions):
        yield f"partitions[{i}].name", partition.name, NAME
        yield f"partitions[{i}].gpu_name", partition.gpu_name, NAME
        if site.gpu_request == "gres":
            yield f"partitions[{i}].gpu_name", partition.gpu_name, GRES_TYPE
    for i, module in enumerate(site.modules):
        yield f"modules[{i}]", module, MODULE
    for stack, modules in site.stack_modules.items():
        for i, module in enumerate(modules):
            yield f"stack_modules.{stack}[{i}]", module, MODULE
    for stack, packages in site.environment.packages.items():
        for i, package in enumerate(packages):
            yield f"environment.packages.{stack}[{i}]", package, PACKAGE
    for stack, name in site.environment.conda.items():
        yield f"environment.conda.{stack}", name, PATH
    yield "environment.image", site.environment.image, PATH
    yield "environment.torch_version", site.environment.torch_version, ("a version such as 2.5.1", VERSION)
    yield "environment.python", site.environment.python, PATH
    yield "torch_cuda_arch_list", site.torch_cuda_arch_list, CAPABILITIES
    for key, flags in site.libtorch:
        for i, flag in enumerate(flags):
            yield f"libtorch.{key}[{i}]", flag, FLAG
