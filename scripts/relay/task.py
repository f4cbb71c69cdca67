"""What is trained, as torch sees it: the model from its seed, the loss, the optimiser and its schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from relay import networks
from relay.catalogue import TaskSpec

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adadelta": torch.optim.Adadelta,
}


@dataclass
class Task:
    """A task bound to one training: its seed, precision and length in steps.

    `dtype` is that of parameters and inputs. `steps_per_epoch` and `total_steps` place a step in the schedule.
    """

    spec: TaskSpec
    classes: int | None
    seed: int
    dtype: torch.dtype
    steps_per_epoch: int
    total_steps: int

    def model(self) -> nn.Sequential:
        """The network with its initial parameters, on the CPU: the same whoever asks, on every rank."""
        # Forked, so that building a model moves no rank's own generator (dropout draws from that).
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            built = networks.build(self.spec.network, self.spec.input_shape, self.classes, self.spec.network_options)
        return built.to(self.dtype)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples given, a scalar; `outputs` are (N, classes) logits or (N, 1) predictions."""
        if self.spec.loss == "mean_squared_error":
            return F.mse_loss(outputs, targets.to(outputs.dtype))
        return F.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The task's optimiser over these parameters, at the learning rate of step 0."""
        chosen = OPTIMIZERS[self.spec.optimizer]
        return chosen(parameters, lr=self.spec.learning_rate, **self.spec.optimizer_options)  # type: ignore[call-arg]

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step: a function of the step alone, so that resuming needs no scheduler's state."""
        schedule, factor = self.spec.schedule, 1.0
        if schedule["kind"] == "step":
            factor = schedule["gamma"] ** (step // self.steps_per_epoch // schedule["every_epochs"])
        elif schedule["kind"] == "cosine":
            factor = (1 + math.cos(math.pi * step / self.total_steps)) / 2
        return self.spec.learning_rate * factor

    def example(self, count: int) -> torch.Tensor:
        """Inputs of `count` samples on the meta device: a shape and a type, without data."""
        return torch.empty(count, *self.spec.input_shape, dtype=self.dtype, device="meta")
