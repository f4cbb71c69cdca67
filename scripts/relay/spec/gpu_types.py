"""The compute capability of NVIDIA's GPUs, by the names that clusters give to them, and what precisions need of it.

Sources: https://developer.nvidia.com/cuda/gpus, and https://developer.nvidia.com/cuda/gpus/legacy for the older ones;
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities for what tensor cores compute in.
"""

from __future__ import annotations

import re

from relay.spec.setting import TF32

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
