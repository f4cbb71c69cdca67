"""Texts of a cluster's file that become part of commands: each has a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from relay.spec.job import FLAG
from relay.spec.messages import show
from relay.spec.versions import VERSION

if TYPE_CHECKING:
    from relay.spec.site import Site

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
