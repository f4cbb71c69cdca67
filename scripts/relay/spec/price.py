"""What a cluster charges for its devices, as its file says."""

from __future__ import annotations

from pydantic import Field

from relay.spec.blocks import Block, Positive, Text


class Price(Block):
    """What an hour of a device costs. The plan shows the sum in the given currency. null: nothing is shown."""

    gpu_hour: Positive | None = Field(default=None, description="an hour of a GPU, with the CPUs that go with it")
    cpu_hour: Positive | None = Field(default=None, description="an hour of a CPU core, of jobs without GPUs")
    currency: Text = Field(default="EUR", description="the currency, or another unit such as credits, as text")
