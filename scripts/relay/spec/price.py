"""What a cluster charges for its devices, as its file says."""

from __future__ import annotations

from pydantic import Field

from relay.spec.blocks import Block, Positive, Text


class Price(Block):
    """What an hour of a device costs. The plan shows the sum in the given currency. null: nothing is shown."""

    gpu_hour: Positive | None = Field(default=None, description="an hour of a GPU, with the CPUs that go with it")
    cpu_hour: Positive | None = Field(default=None, description="an hour of a CPU core, of jobs without GPUs")
    currency: Text = Field(default="EUR", description="the currency, or another unit such as credits, as text")

    def of(self, gpus: float, cpus: float) -> float | None:
        """What so many GPUs, and CPU cores of jobs without GPUs, cost an hour; None where the site does not say."""
        if (gpus and self.gpu_hour is None) or (cpus and self.cpu_hour is None):
            return None
        return gpus * (self.gpu_hour or 0.0) + cpus * (self.cpu_hour or 0.0)
