"""DeepSpeed's compiled operations: those of its wheel, or built once for a kind of node, before any step, and kept.

A cluster's own wheel may have none. DeepSpeed then compiles each when it is first used, and does so again in every job
whose environment has another path.
"""

import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.cpp_extension import _import_module_from_library

from relay.base.errors import UserError
from relay.environments import kept, nvcc
from relay.environments.kept import Build
from relay.process import system

_being_built = ContextVar("a strategy is being built", default=False)


def take_over() -> None:
    """Let DeepSpeed ask here for an operation that is not in its wheel."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    if OpBuilder.jit_load is not _load:
        OpBuilder.compiled_by_deepspeed, OpBuilder.jit_load = OpBuilder.jit_load, _load


@contextmanager
def built_where_missing() -> Iterator[None]:
    """While a strategy is built: operations that the wheel lacks are built. Later, in a step, they are an error."""
    token = _being_built.set(True)
    try:
        yield
    finally:
        _being_built.reset(token)


def _load(builder: Any, verbose: bool = True) -> Any:
    """An operation from this user's cache, which is built there where it is missing. Raises UserError."""
    if not _being_built.get():
        raise UserError(f"DeepSpeed asks for its operation {builder.name} within a step, where nothing is compiled")
    what, compiled = f"DeepSpeed's operation {builder.name}", list[Any]()
    if _on_gpus(builder) and (problem := nvcc.problem(torch.version.cuda)):
        raise UserError(f"{what} is not in its wheel, and {problem}")

    def compile_it(build: Build) -> Path:
        compiled.append(_compiled(builder, build))
        return next(build.folder.rglob(f"{builder.name}.so"))

    file = kept.kept(f"deepspeed-{builder.name}", _depends_on(builder), what, compile_it)
    # One that was compiled now is loaded already: loaded from the file, its types would be there twice.
    operation = compiled[0] if compiled else _import_module_from_library(builder.name, str(file.parent), True)
    builder._loaded_ops[builder.name] = operation
    return operation


def _on_gpus(builder: Any) -> bool:
    """Whether an operation is built with CUDA's compiler, or linked with its libraries."""
    from deepspeed.ops.op_builder.builder import CUDAOpBuilder

    return isinstance(builder, CUDAOpBuilder) and torch.cuda.is_available()


def _depends_on(builder: Any) -> list[Any]:
    """All that an operation depends on. DeepSpeed compiles for the very CPU and GPUs of the node."""
    import deepspeed

    versions = [type(builder).__module__, deepspeed.__version__, torch.__version__, sys.version, kept.compilers("c++")]
    flags = re.findall(r"(?m)^flags\s*:.*$", system.text(Path("/proc/cpuinfo")))[:1]
    return [*versions, flags, _architectures() if _on_gpus(builder) else []]


def _architectures() -> list[str]:
    """Those of the GPUs that are here, such as 9.0."""
    capabilities = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    return [f"{major}.{minor}" for major, minor in sorted(capabilities)]


def _compiled(builder: Any, build: Build) -> Any:
    """Let DeepSpeed compile and load it. What comes of it lies below the build's folder. Raises UserError.

    The user's TORCH_CUDA_ARCH_LIST may be for other GPUs, and DeepSpeed 0.19.8 ends with ValueError on its 9.0a.
    """
    variables = kept.IN_ENGLISH | {"PATH": os.pathsep.join([*_programs(), os.environ.get("PATH", "")])}
    variables |= {"TORCH_EXTENSIONS_DIR": str(build.folder), "MAX_JOBS": os.environ.get("MAX_JOBS") or kept.cpus()}
    variables |= {"TORCH_CUDA_ARCH_LIST": ";".join(_architectures())} if _on_gpus(builder) else {}
    try:
        with mock.patch.dict(os.environ, variables):
            return builder.compiled_by_deepspeed(False)
    except Exception as error:  # whatever a compiler or DeepSpeed's own look at the machine comes to
        build.log.write_text(str(error), encoding="utf-8")
        remedy = "load the modules of a compiler and of torch's CUDA (`stack_modules` in the site's file)"
        remedy += "; it needs libaio's header (Debian: libaio-dev)" * (builder.name == "async_io")
        raise build.failed(str(error), f"it is not in DeepSpeed's wheel; {remedy}") from None


def _programs() -> list[str]:
    """Where the environment's own ninja is: a job starts its Python without activating the environment."""
    folders = [sysconfig.get_path("scripts")]
    if ninja := importlib.util.find_spec("ninja"):
        folders.append(str(Path(str(ninja.origin)).parents[4] / "bin"))
    return folders
