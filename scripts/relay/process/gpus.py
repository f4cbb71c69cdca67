"""GPUs as NVIDIA's driver sees them, by NVML: how busy they are, their memory, power, clocks and energy.

`nvidia-ml-py` (the module `pynvml`) is part of the stacks for CUDA alone; a cluster's own environment may be without
it. Where it, the driver or a reading is missing, there is no figure, and never an error.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from relay.run_folder.samples import Reading

if TYPE_CHECKING:
    import torch

# The driver's own library knows what CUDA will show to torch: CUDA_VISIBLE_DEVICES in all its forms, the order of the
# devices, MIG and control groups are heeded. /dev/nvidia*, NVML and nvidia-smi heed none or only some of them. It is
# asked in a process of its own, because a process that has started CUDA cannot be forked, and because a driver that
# hangs must not stop the planner.
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__INITIALIZE.html, and the page on devices beside it
_DRIVER_ASKED = """
import ctypes, json, uuid
cuda, count, text = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_char_p()
name, number = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if status:
    cuda.cuGetErrorString(status, ctypes.byref(text))
gpus = []
for device in range(count.value):
    kind = "GPU" if cuda.cuDeviceGetName(name, 256, device) else name.value.decode()
    # Since CUDA 11.4: of a part of a GPU (MIG), that of the part.
    ask = getattr(cuda, "cuDeviceGetUuid_v2", None)
    gpus.append((kind, str(uuid.UUID(bytes=number.raw)) if ask and not ask(number, device) else ""))
print(json.dumps((gpus, (text.value or b"error %d" % status).decode() if status else "")))
"""
DRIVER_SECONDS = 60.0  # a node whose GPUs were asleep needs some seconds


def uuids(devices: Sequence[torch.device]) -> list[str]:
    """The UUIDs of these devices' GPUs, by which the driver knows them whatever CUDA_VISIBLE_DEVICES shows.

    '' for one of which torch does not tell it, as old versions.
    """
    import torch

    from relay.process.devices import is_gpu

    identifiers: list[str] = []
    for device in devices:
        if is_gpu(device):
            try:
                identifiers.append(str(torch.cuda.get_device_properties(device).uuid))
            except Exception:  # a figure, for which no run fails
                identifiers.append("")
    return identifiers


def nccl_version() -> tuple[int, int, int] | None:
    """The version of the NCCL (2.9 or newer) that torch calls in this process; None where torch has none.

    `torch.cuda.nccl.version` tells the one that torch was built with. Another one may be loaded, because a package
    brought it or LD_PRELOAD names it. The function is looked for as the dynamic linker does: first among what all
    libraries see, then in torch's library and what it needs. NOLOAD opens only what is loaded already. Torch's own word
    stands where the function is hidden: NCCL is a part of torch there.
    """
    import torch

    number = ctypes.c_int()
    for library in (None, "libtorch_cuda.so"):
        with suppress(OSError, AttributeError):  # not loaded; without the symbol
            if ctypes.CDLL(library, os.RTLD_NOLOAD).ncclGetVersion(ctypes.byref(number)) == 0:
                major, rest = divmod(number.value, 10_000)
                return major, *divmod(rest, 100)
    with suppress(AttributeError, RuntimeError):
        return torch.cuda.nccl.version()[:3]
    return None


def nccl() -> str | None:
    """The version of the NCCL that torch calls in this process, such as 2.27.5; None where torch has none."""
    return ".".join(map(str, nccl_version() or ())) or None


class Visible(NamedTuple):
    """The GPUs that CUDA shows to this process and to those that it starts: kind and UUID of each, '' where not told.

    Where there are none, `why`.
    """

    kinds: Sequence[str] = ()
    uuids: Sequence[str] = ()
    why: str = ""


def visible() -> Visible:
    """What NVIDIA's driver says, without asking torch."""
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _DRIVER_ASKED],
            check=False,
            capture_output=True,
            text=True,
            timeout=DRIVER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Visible(why=f"NVIDIA's driver did not answer within {DRIVER_SECONDS:g} s")
    if answer.returncode:
        missing = "libcuda.so.1: cannot open" in answer.stderr
        why = "it has no driver for one (libcuda.so.1)" if missing else "NVIDIA's driver cannot be asked"
        return Visible(why=why)
    gpus, problem = json.loads(answer.stdout)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = "" if shown is None else f" (CUDA_VISIBLE_DEVICES is {shown!r})"
    why = f"NVIDIA's driver says: {problem}{limited}" if problem else ""
    return Visible([kind for kind, _ in gpus], [uuid for _, uuid in gpus], why)


class Gpus:
    """Some GPUs of this node; none where NVML does not know all of them. `close` it at the end.

    `unknown` says why none can be asked; '' where they can.
    """

    def __init__(self, gpu_uuids: Sequence[str]) -> None:
        self._nvml: Any
        self._gpus: list[_Gpu] = []
        self._nvml, self.unknown = _started() if gpu_uuids else (None, "")
        for uuid in dict.fromkeys(gpu_uuids) if self._nvml else ():
            if (gpu := _Gpu.opened(self._nvml, uuid)) is None:
                self.unknown = f"NVIDIA's driver (NVML) tells nothing of GPU {uuid or 'without a UUID'} alone"
            else:
                self._gpus.append(gpu)
        if self.unknown:  # the others' sums would be too small
            self.close()
            self._nvml, self._gpus = None, []

    def look(self) -> list[Reading]:
        """For each GPU, the values of `READINGS`; None for what it does not tell."""
        return [gpu.look() for gpu in self._gpus]

    def close(self) -> None:
        """Let go of NVML."""
        if self._nvml:
            for gpu in self._gpus:
                gpu.activity.close()
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def _started() -> tuple[Any, str]:
    """The module `pynvml` with a connection to the driver; or None, and why."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None, "the package nvidia-ml-py is not in this environment; install it there (pip install nvidia-ml-py)"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"NVIDIA's driver tells nothing ({error})"
    return nvml, ""


class _Gpu:
    """One GPU. What it refuses to tell once is not asked for again."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self.activity = nvml, _activity(nvml, handle)
        next(self.activity, None)  # from now on
        # NVML tells percent, milliwatts and millijoules.
        self._readers: tuple[Callable[[], float], ...] = (
            lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        )

    @classmethod
    def opened(cls, nvml: Any, uuid: str) -> _Gpu | None:
        """The GPU with this UUID, or the part of one (MIG); None where NVML does not know it.

        Also for a GPU that is divided: its figures are those of all users of its parts.
        """
        for prefix in ("", "GPU-", "MIG-"):
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}".encode())
                return None if _is_divided(nvml, handle) else cls(nvml, handle)
        return None

    def look(self) -> Reading:
        """The values of `READINGS`."""
        return [*map(self._tried, self._readers), *next(self.activity, (None, None))]

    def _tried(self, ask: Callable[[], float]) -> float | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def _is_divided(nvml: Any, handle: Any) -> bool:
    """Whether it is a GPU in MIG's mode, and no part of one."""
    with suppress(nvml.NVMLError, AttributeError):  # a GPU that cannot be divided; an old `pynvml`
        if not nvml.nvmlDeviceIsMigDeviceHandle(handle):
            return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    return False


def _activity(nvml: Any, handle: Any) -> Generator[tuple[float | None, float | None]]:
    """The parts, from 0 to 1, of multiprocessors and of tensor cores that were busy since the last look (NVML's GPM).

    It is from Hopper on. Nothing where the GPU, its driver or this version of `pynvml` has none. The first is unknown,
    and so is one that fails.
    """
    samples: list[Any] = []
    try:
        with suppress(nvml.NVMLError, AttributeError):
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return
            samples += [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            nvml.nvmlGpmSampleGet(handle, samples[0])
        figures: tuple[float | None, float | None] = (None, None)
        while len(samples) == 2:
            yield figures
            figures = None, None
            with suppress(nvml.NVMLError, AttributeError):
                nvml.nvmlGpmSampleGet(handle, samples[1])
                request = nvml.c_nvmlGpmMetricsGet_t()
                request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
                request.sample1, request.sample2 = samples
                request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
                request.metrics[1].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
                nvml.nvmlGpmMetricsGet(request)
                first, second = (None if each.nvmlReturn else each.value / 100 for each in request.metrics[:2])
                figures = first, second
                samples.reverse()
    finally:
        for sample in samples:
            with suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)
