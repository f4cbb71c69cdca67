"""The GPUs of this machine that a run may use, as NVIDIA's driver counts them. Imports no torch."""

from __future__ import annotations

import os
import subprocess
import sys

# The driver's own library counts what CUDA will show to torch: CUDA_VISIBLE_DEVICES, MIG and control groups are heeded.
# /dev/nvidia* and nvidia-smi heed none or only some of them. It is asked in a process of its own, because a process
# that has started CUDA cannot be forked, and because a driver that hangs must not stop the planner.
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html, and the page on devices beside it
_ASKED = """
import ctypes
cuda, count, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_char_p()
status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if status:
    cuda.cuGetErrorString(status, ctypes.byref(text))
print(count.value, (text.value or b"error %d" % status).decode() if status else "")
"""
SECONDS = 60.0  # a node whose GPUs were asleep needs some seconds


def count_gpus() -> int:
    """The number of NVIDIA GPUs that CUDA shows to this process and to those that it starts."""
    return usable()[0]


def usable() -> tuple[int, str]:
    """How many GPUs CUDA shows here; where there are none, why."""
    try:
        asked = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASKED], check=False, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return 0, f"NVIDIA's driver did not answer within {SECONDS:g} s"
    if asked.returncode:
        missing = "libcuda.so.1: cannot open" in asked.stderr
        return 0, "it has no driver for one (libcuda.so.1)" if missing else "NVIDIA's driver cannot be asked"
    count, _, said = asked.stdout.strip().partition(" ")
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = "" if shown is None else f" (CUDA_VISIBLE_DEVICES is {shown!r})"
    return int(count), f"NVIDIA's driver says: {said}{limited}" if said else ""
