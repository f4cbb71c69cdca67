"""What is trained, as torch sees it: the model from its seed, the loss, the optimiser and its schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from relay import networks
from relay.datasets import kinds
from relay.spec.run import Training
from relay.spec.tasks import TaskSpec
from relay.task.network import Computation, Network

# Matrix products and convolutions in fewer bits; parameters, their updates and the loss stay in float32.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Of fp16's loss. It doubles with every 2,000 steps without overflow; a low start loses no step to finding the scale.
FIRST_SCALE = 1024.0
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adadelta": torch.optim.Adadelta,
}


@dataclass
class Task:
    """A task bound to one training: its seed, its arithmetic and its length in steps.

    `precision` is fp64, fp32, tf32, bf16 or fp16. `kind` is the dataset's. `steps_per_epoch` and `total_steps` place a
    step in the schedule. `compiled`, `channels_last` and `recompute` (activation checkpointing) say how layers are
    computed, and change no result but by rounding.
    """

    spec: TaskSpec
    classes: int | None
    seed: int
    precision: str
    steps_per_epoch: int
    total_steps: int
    kind: str = "images"
    compiled: bool = False
    channels_last: bool = False
    recompute: bool = False

    @classmethod
    def of(cls, run: Training) -> Task:
        """The task as a run trains it."""
        return cls(
            run.task,
            run.dataset.classes,
            run.seed,
            run.computation.precision,
            run.length.steps_per_epoch,
            run.length.total_steps,
            kind=run.dataset.kind,
            compiled=run.computation.compile,
            channels_last=run.computation.channels_last,
            recompute=run.computation.activation_checkpointing,
        )

    @property
    def dtype(self) -> torch.dtype:
        """That of parameters, and of inputs where their kind has none of its own."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def model(self) -> Network:
        """The network with its initial parameters, on the CPU: the same whoever asks, on every rank."""
        layers = self.layers().to(self.dtype)
        if self.channels_last:
            # A convolution with such weights computes in this order whatever the order of its inputs.
            layers = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        computation = Computation(AUTOCAST.get(self.precision), self.recompute, self.compiled)
        return Network(dict(layers.named_children()), computation)

    def layers(self) -> nn.Sequential:
        """The network's layers as its file builds them, with the seed's initial parameters."""
        # Forked, so that building a model moves no rank's own generator (dropout draws from that).
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return networks.build(self.spec.network, self.spec.input_shape, self.classes, self.spec.network_options)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples given, a scalar.

        `outputs` are (N, classes) logits, (N, length, classes) logits of a text, or (N, 1) predictions.
        """
        if outputs.dtype in AUTOCAST.values():
            outputs = outputs.float()
        if self.spec.loss == "mean_squared_error":
            return F.mse_loss(outputs, targets.to(outputs.dtype))
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """How many of the samples are classified rightly; of a text's sample, the share of its tokens."""
        right = (outputs.argmax(-1) == targets).double()
        return float(right.reshape(len(right), -1).mean(1).sum())

    def optimizer(self, parameters: Iterable[nn.Parameter] | list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The task's optimiser over these parameters, or groups of them, at the learning rate of step 0."""
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
        dtype = kinds.load(self.kind).input_dtype(self.dtype)
        return torch.empty(count, *self.spec.input_shape, dtype=dtype, device="meta")
