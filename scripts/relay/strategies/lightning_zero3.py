"""PyTorch Lightning's Trainer with its DeepSpeedStrategy: ZeRO, stage 3, as users of Lightning run it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from relay.strategies._deepspeed import ZeRO
from relay.strategies._lightning import LightningStrategy, TrainedModule
from relay.strategies._lightning_library import (
    DDPStrategy,
    DeepSpeedPrecision,
    DeepSpeedStrategy,
    OnTheRunsDevice,
    TheRunsProcesses,
)
from relay.strategies.base import Requirements


class LightningZeRO3(LightningStrategy, ZeRO):
    """Lightning wraps its module in DeepSpeed's engine, with the settings of `zero3`, and trains it.

    What is divided, saved and loaded is as in `zero3`.
    """

    requirements = Requirements(
        stack="deepspeed",
        packages=("deepspeed>=0.16.9,<0.20", "lightning|pytorch-lightning"),
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        options={"fused_adam": False},
        needs=("adam_if_fused", "whole_tensors", "unconditional"),
        compiles=False,
    )
    stage = 3

    engine: Any = None

    def engine_of(
        self, deepspeed: Any, model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]
    ) -> Any:
        """The engine, as Lightning makes it: once, for all Trainers of the run."""
        self.config = config
        self.lightning_module = TrainedModule(self, model, optimizer)
        return self.lightning_strategy().engine_of(self.lightning_module, optimizer)

    def lightning_strategy(self) -> OwnDeepSpeed:
        return OwnDeepSpeed(
            self.engine,
            config=deepcopy(self.config),
            parallel_devices=[self.ranks.device],
            cluster_environment=TheRunsProcesses(self.ranks),
            precision_plugin=TheRunsPrecision(self),
        )


class OwnDeepSpeed(OnTheRunsDevice, DeepSpeedStrategy):
    """Lightning's DeepSpeedStrategy on this rank's device, with an engine that is made already.

    Lightning allows it on GPUs alone: it refuses another accelerator in `setup_environment`, and reads the number of
    each GPU in `setup_distributed`. Both only prepare what the run has prepared. All else is Lightning's own, and
    DeepSpeed itself runs on CPUs.
    """

    def __init__(self, engine: Any, **given: Any) -> None:
        super().__init__(**given)
        self.engine = engine

    @property
    def root_device(self) -> torch.device:
        """DeepSpeed wants the device's number, also of a CPU."""
        device = super().root_device
        return device if device.index is not None else torch.device(device.type, 0)

    def setup_environment(self) -> None:
        """What Lightning's strategies do that refuse no device."""
        DDPStrategy.setup_environment(self)

    def setup_distributed(self) -> None:
        """The run's processes are one group already."""
        self.set_world_ranks()

    def engine_of(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        """DeepSpeed's engine around the module, as Lightning makes it."""
        self._init_config_if_needed()
        return super()._setup_model_and_optimizer(module, optimizer)[0]

    def _setup_model_and_optimizer(self, model: nn.Module, *_: Any) -> tuple[Any, Any]:
        """Called by Lightning when the training begins."""
        return self.engine, self.engine.optimizer


class TheRunsPrecision(DeepSpeedPrecision):
    """Lightning's plugin for DeepSpeed, which leaves types to the run: the network has its own, fp16's scale is kept.

    Lightning has no float64 with DeepSpeed, and would turn all parameters into 16 bits for mixed precision.
    """

    def __init__(self, strategy: LightningZeRO3) -> None:
        super().__init__("32-true")
        self.strategy = strategy

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Parameters have their type already."""
        return module

    def convert_input(self, data: Any) -> Any:
        """So do batches."""
        return data

    def backward(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        """By DeepSpeed's engine, with the scale of fp16."""
        self.strategy.backward(tensor)

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **_: Any) -> None:
        """Forward and backward pass, then the step of DeepSpeed's engine."""
        closure()
        self._after_closure(model, optimizer)
        self.strategy.update()
