"""Stand-ins for NVIDIA's libraries, with the functions that count GPUs and tell NCCL's version, and no more.

The driver, `libcuda.so.1`, takes CUDA_VISIBLE_DEVICES as NVIDIA documents it, so far: it counts the entries before the
first that is -1.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCE = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDeviceGetCount(int *count) {
    char *shown = getenv("CUDA_VISIBLE_DEVICES"), list[200];
    *count = GPUS;
    if (shown) {
        *count = 0;
        strcpy(list, strcmp(shown, "NoDevFiles") ? shown : "");
        for (char *one = strtok(list, ","); one && strcmp(one, "-1"); one = strtok(NULL, ",")) ++*count;
    }
    return *count ? 0 : 100;  /* CUDA_ERROR_NO_DEVICE */
}
int cuGetErrorString(int status, const char **text) {
    (void)status;
    *text = "no CUDA-capable device is detected";
    return 0;
}
"""


def driver_of_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Have every program that this test starts find the stand-in, of a machine with so many GPUs."""
    _library(folder / "libcuda.so.1", SOURCE, f"-DGPUS={gpus}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def nccl(folder: Path, version: int) -> Path:
    """NCCL's library, of a version as NCCL writes it (23007 is 2.30.7)."""
    source = "int ncclGetVersion(int *version) { *version = VERSION; return 0; }"
    return _library(folder / "libnccl.so.2", source, f"-DVERSION={version}", "-Wl,-soname,libnccl.so.2")


def _library(path: Path, source: str, *options: str) -> Path:
    """A shared library of that source in C."""
    path.parent.mkdir(exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-", "-x", "none", *options]
    subprocess.run(command, input=source, text=True, check=True)
    return path
