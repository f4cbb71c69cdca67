"""A stand-in for `pynvml` (nvidia-ml-py), with those of its functions that the project calls. It is no driver.

It shows that readings are asked for and turned into the right units.
"""

from types import ModuleType, SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What all of its functions raise."""


class FakeNvml(ModuleType):
    """The module. `known` are the UUIDs of the GPUs."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 2, 5

    def __init__(self, known: tuple[str, ...]) -> None:
        super().__init__("pynvml")
        self.known = known
        self.opened = 0
        self.samples = 0
        self.unsupported_metric = 0

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        if uuid.decode() not in self.known:
            raise NVMLError("Not Found")
        return uuid.decode()

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> bool:
        return handle.startswith("MIG-")

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [handle == "GPU-divided"] * 2

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=75, memory=20)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=3 * 2**30, total=80 * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_500

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {1: 1410, 2: 1593}[kind]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return 9_000_500

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        self.samples += 1
        return SimpleNamespace(number=self.samples)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.samples -= 1

    def nvmlGpmSampleGet(self, handle: str, sample: Any) -> None:
        sample.taken = True

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0) for _ in range(98)])

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        assert asked.sample1.taken
        assert asked.sample2.taken
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = {2: 60.0, 5: 12.5}[metric.metricId]
            if metric.metricId == self.unsupported_metric:
                metric.value, metric.nvmlReturn = 0.0, 3
        return asked
