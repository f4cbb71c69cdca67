"""What changes the arithmetic of a process from outside: environment variables, the version of torch, the GPU.

The first two belong to the identity of runs, gates and references. Two runs whose arithmetic differs are two runs, and
a gate proves nothing for a run that computes otherwise. Needs no torch: the planner asks, too.

Sources for GPUs: https://developer.nvidia.com/cuda/gpus, and https://developer.nvidia.com/cuda/gpus/legacy for older
ones; https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities for what tensor cores compute in.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from relay.base.errors import UserError
from relay.spec.setting import TF32, Place
from relay.spec.versions import installed

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
# In the names that clusters give to GPUs: a100, nvidia_h100_80gb_hbm3, h100_1g.10gb.
COMPUTE_CAPABILITY: dict[str, tuple[int, int]] = {
    "p100": (6, 0),
    **dict.fromkeys(("p40", "p4", "titanxp", "gtx1080ti"), (6, 1)),
    **dict.fromkeys(("v100", "v100s", "v100l"), (7, 0)),
    **dict.fromkeys(("t4", "rtx6000", "rtx8000", "rtx2080ti"), (7, 5)),
    **dict.fromkeys(("a100", "a100l", "a30"), (8, 0)),
    **dict.fromkeys(("a40", "a16", "a10", "a2", "a6000", "a5000", "rtx3090"), (8, 6)),
    **dict.fromkeys(("l4", "l40", "l40s", "rtx4090"), (8, 9)),
    **dict.fromkeys(("h100", "h200", "gh200"), (9, 0)),
    # The 300s have 10.3. Code for 10.0 runs there, and the nvcc of CUDA 12.8 knows no 10.3.
    **dict.fromkeys(("b100", "b200", "gb200", "b300", "gb300"), (10, 0)),
    "rtx5090": (12, 0),
}
# From which compute capability on tensor cores compute in a precision. Below, TF32 is silently fp32, bf16 is emulated,
# and fp16 has no tensor cores; the latter two give the right results.
TENSOR_CORES: dict[str, tuple[int, int]] = {**dict.fromkeys(TF32, (8, 0)), "bf16": (8, 0), "fp16": (7, 0)}


@dataclass(frozen=True)
class Arithmetic:
    """The variables that are set, as "NAME=value; NAME=value", and the version of torch beside this Python, if any."""

    variables: str
    torch: str | None

    @classmethod
    def here(cls) -> Self:
        """Of this process."""
        return cls(variables_set(os.environ), installed("torch"))


def variables_set(environment: Mapping[str, str]) -> str:
    """Those of the variables that are set, sorted, as "NAME=value; NAME=value"; '' without any."""
    return "; ".join(f"{name}={value}" for name, value in sorted(environment.items()) if counts(name) and value)


def counts(name: str) -> bool:
    """Whether a variable of this name acts on the arithmetic."""
    if name in VARIABLES:
        return True
    return name.startswith(PREFIXES) and not any(word in name for word in HARMLESS)


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
    mine, theirs = (dict(each.partition("=")[::2] for each in text.split("; ") if each) for text in (here, planned))
    name = min(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    words = [f"'{values[name]}'" if name in values else "unset" for values in (mine, theirs)]
    return name, words[0], words[1]


def without_tensor_cores(precision: str, capability: tuple[int, int]) -> str | None:
    """What a precision is on GPUs whose tensor cores do not have it; None where they do, or it needs none."""
    least = TENSOR_CORES.get(precision)
    if least is None or capability >= least:
        return None
    how = {"bf16": "is emulated, slowly, and not for every operation", "fp16": "is computed without tensor cores"}
    has, wants = (".".join(map(str, each)) for each in (capability, least))
    return f"precision {precision} {how.get(precision, 'would be fp32')} (compute capability {has}, it needs {wants})"


def compute_capability(gpu_name: str | None) -> tuple[int, int] | None:
    """The compute capability, (major, minor), of a GPU by its name on a cluster; None where the name does not tell."""
    words = re.findall(r"[a-z0-9]+", (gpu_name or "").lower())
    return next((COMPUTE_CAPABILITY[word] for word in words if word in COMPUTE_CAPABILITY), None)
