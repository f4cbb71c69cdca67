"""What changes the arithmetic of a process from outside: environment variables, and the version of torch.

Both belong to the identity of runs, gates and references. Two runs whose arithmetic differs are two runs, and a gate
proves nothing for a run that computes otherwise. Needs no torch: the planner asks, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Self

from relay.base.errors import UserError
from relay.spec.versions import installed

if TYPE_CHECKING:
    from relay.spec.setting import Place

# Read by torch 2.13, or by the libraries that it computes with. Each chooses another format, instruction set, algorithm
# or order of sums. Numbers of threads are no part of it: they are declared (`threads`).
VARIABLES = (
    *(f"{prefix}_{name}" for prefix in ("ONEDNN", "DNNL") for name in ("DEFAULT_FPMATH_MODE", "MAX_CPU_ISA")),
    *("ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS"),
    *("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_BLAS_COMPUTE_MODE", "OPENBLAS_CORETYPE"),
    *("TORCH_MKLDNN_MATMUL_MIN_DIM", "TORCH_MKLDNN_MATMUL_MIN_SIZE", "TORCH_LINEAR_FLATTEN_3D"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"),
    *("TORCH_BLAS_PREFER_CUBLASLT", "TORCH_LINALG_PREFER_CUSOLVER"),
    *("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "TORCH_CUDNN_V8_API_DISABLED", "TRITON_F32_DEFAULT"),
    *("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_BACKEND", "TORCH_COMPILE_OVERRIDE_BACKENDS"),
)
# Every variable with such a beginning, but for those that only say where files go, what is printed, and who compiles.
PREFIXES = ("TORCHINDUCTOR_", "CUBLAS_EMULAT", "PYTORCH_TUNABLEOP_")
HARMLESS = ("CACHE", "DEBUG", "PROFILE", "LOG", "REDIS", "COMPILE_THREADS", "WORKER", "FILENAME", "TIMEOUT", "VERBOSE")


@dataclass(frozen=True)
class Arithmetic:
    """The variables that are set, as "NAME=value; NAME=value", and the version of torch beside this Python, if any."""

    variables: str
    torch: str | None

    @classmethod
    def here(cls) -> Self:
        """Of this process."""
        return cls(variables_set(os.environ), installed_torch())


def variables_set(environment: Mapping[str, str]) -> str:
    """Those of the variables that are set, sorted, as "NAME=value; NAME=value"; '' without any."""
    return "; ".join(f"{name}={value}" for name, value in sorted(environment.items()) if counts(name) and value)


def counts(name: str) -> bool:
    """Whether a variable of this name acts on the arithmetic."""
    if name in VARIABLES:
        return True
    return name.startswith(PREFIXES) and not any(word in name for word in HARMLESS)


@cache
def installed_torch() -> str | None:
    """The version of torch that this Python has, without importing it; None without one."""
    return installed("torch")


def check(job: str, place: Place) -> None:
    """Raise UserError where this process does not compute as `job` was planned to."""
    present = Arithmetic.here()
    if present.variables != place.variables:
        name, here, planned = _first_difference(present.variables, place.variables)
        raise UserError(
            f"{job}: {name} is {here} in its job, and was {planned} when it was planned; this variable changes the "
            "arithmetic. Set it, or leave it unset, in both: where the driver is started, and in the job (its modules, "
            "the shell's start-up files)"
        )
    if place.torch_version is not None and present.torch != place.torch_version:
        raise UserError(
            f"{job}: torch {present.torch} is installed, and it was planned with {place.torch_version}; start the "
            "driver again, which plans with the torch that is there"
        )


def _first_difference(here: str, planned: str) -> tuple[str, str, str]:
    """The name of a variable that differs, and what it is here and in the plan."""
    mine, theirs = ({name: value for name, _, value in _parts(text)} for text in (here, planned))
    name = min(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    words = [f"'{values[name]}'" if name in values else "unset" for values in (mine, theirs)]
    return name, words[0], words[1]


def _parts(text: str) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in text.split("; ") if each]
