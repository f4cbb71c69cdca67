"""GPUs as NVIDIA's driver sees them, by NVML: how busy they are, their memory, power, clocks and energy.

`nvidia-ml-py` (the module `pynvml`) is part of the stacks for CUDA alone; a cluster's own environment may be without
it. Where it, the driver or a reading is missing, there is no figure, and never an error.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relay.run_folder.samples import Reading

if TYPE_CHECKING:
    import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"


def uuids(devices: Sequence[torch.device]) -> list[str]:
    """The UUIDs of these devices' GPUs, by which the driver knows them whatever CUDA_VISIBLE_DEVICES shows."""
    import torch

    from relay.process.devices import is_gpu

    identifiers: list[str] = []
    for device in devices:
        if is_gpu(device):
            with suppress(Exception):  # old versions of torch do not tell it
                identifiers.append(str(torch.cuda.get_device_properties(device).uuid))
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


def visible() -> dict[str, str]:
    """The GPUs that CUDA shows to this process's programs, without asking torch: the kind of each, by its UUID.

    Empty without NVML.
    """
    nvml, _ = _started()
    if nvml is None:
        return {}
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        kinds = {_text(nvml.nvmlDeviceGetUUID(handle)): _kind(nvml, handle) for handle in handles}
    except nvml.NVMLError:
        return {}
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    shown = os.environ.get(VISIBLE)
    if shown is None:
        return kinds
    names, numbered = [name.strip() for name in shown.split(",")], [*kinds]
    by_number = [numbered[int(name)] for name in names if name.isdecimal() and int(name) < len(numbered)]
    by_uuid = [uuid for uuid in numbered if any(name and uuid.startswith(name) for name in names)]
    return {uuid: kinds[uuid] for uuid in (*by_number, *by_uuid)}


def _kind(nvml: Any, handle: Any) -> str:
    try:
        return _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return "GPU"


class Gpus:
    """Some GPUs of this node. `close` it at the end; a GPU that NVML does not find is left out.

    `unknown` says why none can be asked; '' where they can.
    """

    def __init__(self, gpu_uuids: Sequence[str]) -> None:
        self._nvml: Any
        self._nvml, self.unknown = _started() if gpu_uuids else (None, "")
        opened = [_Gpu.opened(self._nvml, uuid) for uuid in dict.fromkeys(gpu_uuids)] if self._nvml else []
        self._gpus = [gpu for gpu in opened if gpu is not None]

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
        self._readers: dict[str, Callable[[], float] | None] = {
            "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "energy_joules": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        }

    @classmethod
    def opened(cls, nvml: Any, uuid: str) -> _Gpu | None:
        """The GPU with this UUID, or the part of one (MIG); None where NVML does not know it."""
        for prefix in ("", "GPU-", "MIG-"):
            with suppress(nvml.NVMLError):
                return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}".encode()))
        return None

    def look(self) -> Reading:
        """The values of `READINGS`."""
        reading: Reading = []
        for name, ask in self._readers.items():
            value = self._tried(ask) if ask else None
            if value is None:
                self._readers[name] = None
            reading.append(value)
        return [*reading, *next(self.activity, (None, None))]

    def _tried(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


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
                figures = request.metrics[0].value / 100, request.metrics[1].value / 100
                samples.reverse()
    finally:
        for sample in samples:
            with suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)


def _text(name: Any) -> str:
    """A name as text; old versions of `pynvml` give bytes."""
    return name.decode() if isinstance(name, bytes) else str(name)
