"""PyTorch Lightning's Trainer with its DDP strategy: the framework's loop, on the run's batches."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from relay.strategies._lightning import LightningStrategy
from relay.strategies._lightning_library import DDPStrategy, OnTheRunsDevice, TheRunsProcesses, precision_plugin
from relay.strategies.base import Requirements
from relay.strategies.ddp import settle


class LightningDDP(LightningStrategy):
    """Every process holds the whole model; Lightning wraps it in DistributedDataParallel.

    `static_graph`, `find_unused_parameters` and `bucket_mb` are DDP's. `model_checkpoint` also writes Lightning's own
    checkpoint file of the weights.
    """

    requirements = Requirements(
        stack="lightning",
        packages=("lightning|pytorch-lightning",),
        least_devices=2,
        divides=("samples",),
        needs=("unconditional_if_static",),
        options={"static_graph": False, "find_unused_parameters": False, "bucket_mb": 25.0, "model_checkpoint": False},
        least={"bucket_mb": 0.001},
    )

    wrapper: DistributedDataParallel | None = None

    def build(self, static_graph: bool, find_unused_parameters: bool, bucket_mb: float, model_checkpoint: bool) -> None:
        self.model_checkpoint = model_checkpoint
        self.ddp = {
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters or self.task.spec.card.leaves_out,
            # With its default size, DDP makes the first bucket smaller than the others.
            "bucket_cap_mb": None if bucket_mb == self.requirements.options["bucket_mb"] else bucket_mb,
        }
        self.build_whole()
        # Made once, as Lightning makes it for each Trainer, so that its buckets are those of the whole run.
        self.module = self.wrapper = self.lightning_strategy().wrapped(self.lightning_module)
        settle(self.wrapper, self.task, self.global_batch_size // self.replica.count, self.ranks.device)

    def lightning_strategy(self) -> OwnDDP:
        return OwnDDP(
            self.wrapper,
            parallel_devices=[self.ranks.device],
            cluster_environment=TheRunsProcesses(self.ranks),
            precision_plugin=precision_plugin(self),
            **self.ddp,
        )


class OwnDDP(OnTheRunsDevice, DDPStrategy):
    """Lightning's DDP on this rank's device, with a module that is wrapped already."""

    def __init__(self, wrapper: DistributedDataParallel | None, **given: Any) -> None:
        super().__init__(**given)
        self.wrapper = wrapper

    def wrapped(self, module: nn.Module) -> DistributedDataParallel:
        """The module in DistributedDataParallel, as Lightning wraps it."""
        return super()._setup_model(module)

    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        """Called by Lightning when the training begins."""
        return self.wrapper or self.wrapped(model)
