"""A stand-in for NVIDIA's driver, with the functions that count and name GPUs, and no more.

`libcuda.so.1` takes CUDA_VISIBLE_DEVICES as NVIDIA documents it, so far: it counts the entries before the
first that is -1.
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
"""

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
int cuDeviceGetName(char *name, int length, int device) { return (void)length, (void)device, strcpy(name, "Fake"), 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { return memset(uuid, 0, 16), uuid[15] = device, 0; }
int cuGetErrorString(int status, const char **text) {
    (void)status;
    *text = "no CUDA-capable device is detected";
    return 0;
}
"""


def driver_of_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Have every program that this test starts find the stand-in, of a machine with so many GPUs."""
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(folder / "libcuda.so.1"), "-", f"-DGPUS={gpus}"]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
