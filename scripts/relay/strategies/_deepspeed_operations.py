"""DeepSpeed's compiled operations: those of its wheel, or built once for a kind of node, before any step, and kept.

A cluster's own wheel may have none. DeepSpeed then compiles each when it is first used, and does so again in every job
whose environment has another path.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from relay.base.errors import UserError
from relay.base.files import write_bytes
from relay.environments import built, nvcc
from relay.environments.versioned import only_one
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
    if _on_gpus(builder) and (problem := nvcc.problem(torch.version.cuda)):
        raise UserError(f"DeepSpeed's operation {builder.name} is not in its wheel, and {problem}")
    place = _folder() / f"deepspeed-{builder.name}-{_key(builder)}"
    file = place / f"{builder.name}.so"
    with built.in_the_cache(), only_one(place):
        operation = _import(builder.name, file) if file.is_file() else _build(builder, file)
    builder._loaded_ops[builder.name] = operation
    return operation


def _import(name: str, file: Path) -> Any:
    """A module of that name from a compiled file."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _folder() -> Path:
    """The cache that the user's nodes share; the node's own where the former cannot be written in a job."""
    shared = built.cache() / "built"
    with suppress(OSError):
        shared.mkdir(parents=True, exist_ok=True)
    own = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(own) if own and not os.access(shared, os.W_OK) else shared


def _on_gpus(builder: Any) -> bool:
    """Whether an operation is built with CUDA's compiler, or linked with its libraries."""
    from deepspeed.ops.op_builder.builder import CUDAOpBuilder

    return isinstance(builder, CUDAOpBuilder) and torch.cuda.is_available()


def _key(builder: Any) -> str:
    """A digest of all that an operation depends on. DeepSpeed compiles for the very CPU and GPUs of the node."""
    import deepspeed

    compiler = shlex.split(os.environ.get("CXX", "c++"))
    try:
        about = subprocess.run([*compiler, "--version"], check=False, capture_output=True, text=True).stdout
    except OSError:
        about = ""
    depends_on = [builder.name, type(builder).__module__, deepspeed.__version__, torch.__version__, sys.version, about]
    depends_on += [platform.machine(), *re.findall(r"(?m)^flags\s*:.*$", system.text(Path("/proc/cpuinfo")))[:1]]
    depends_on += _architectures() if _on_gpus(builder) else []
    return hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:12]


def _architectures() -> list[str]:
    """Those of the GPUs that are here, such as 9.0."""
    capabilities = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    return [f"{major}.{minor}" for major, minor in sorted(capabilities)]


def _environment(builder: Any, folder: str) -> dict[str, str]:
    """The environment in which DeepSpeed builds it in a folder.

    The user's TORCH_CUDA_ARCH_LIST may be for other GPUs, and DeepSpeed 0.19.8 ends with ValueError on its 9.0a.
    """
    variables = {"TORCH_EXTENSIONS_DIR": folder, "PATH": os.pathsep.join([*_programs(), os.environ.get("PATH", "")])}
    variables |= {"MAX_JOBS": os.environ.get("MAX_JOBS") or str(min(len(os.sched_getaffinity(0)), built.MOST_CPUS))}
    return variables | ({"TORCH_CUDA_ARCH_LIST": ";".join(_architectures())} if _on_gpus(builder) else {})


def _build(builder: Any, file: Path) -> Any:
    """Let DeepSpeed compile it in a temporary folder, and keep what comes of it."""
    node = os.uname().nodename
    print(f"Building DeepSpeed's operation {builder.name} on node {node}; this is done once", flush=True)
    with tempfile.TemporaryDirectory(prefix="torch-relay-build-") as folder:
        try:
            with mock.patch.dict(os.environ, _environment(builder, folder)), built.telling(f"building {builder.name}"):
                operation = builder.compiled_by_deepspeed(False)
        except Exception as error:  # whatever a compiler or DeepSpeed's own look at the machine comes to
            raise UserError(
                f"DeepSpeed's operation {builder.name} is not in its wheel, and could not be built on node {node}: "
                f"{_why(str(error))}; load the modules of a compiler and of torch's CUDA (`stack_modules` in the "
                "site's file)" + "; it needs libaio's header (Debian: libaio-dev)" * (builder.name == "async_io")
            ) from None
        # Ranks of nodes whose disk has no locks may all come here: each replaces the file by its own.
        write_bytes(file, next(Path(folder).rglob(file.name)).read_bytes())
    return operation  # not that of the file: its types would be there twice


def _programs() -> list[str]:
    """Where the environment's own ninja is: a job starts its Python without activating the environment."""
    folders = [sysconfig.get_path("scripts")]
    if ninja := importlib.util.find_spec("ninja"):
        folders.append(str(Path(str(ninja.origin)).parents[4] / "bin"))
    return folders


def _why(output: str) -> str:
    """The first line that tells an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no line says why"]
    return next((line for line in lines if re.search(r"\berror\b", line)), lines[-1])[:300]
