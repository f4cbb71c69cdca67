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
from relay.process.devices import generators_kept, is_gpu
from relay.spec.run import Training
from relay.spec.tasks import TaskSpec
from relay.task.network import Computation, Network

# The types of matrix products and convolutions; parameters, their updates and the loss stay in float32.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The first scale of fp16's loss. It doubles after 2,000 steps without overflow. With a low start, no steps are lost to
# overflows at the beginning.
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

    `precision` is one of `relay.spec.setting.Precision`. `kind` is the dataset's. The schedule needs `steps_per_epoch`
    and `total_steps`. `compiled`, `channels_last` and `recompute` (activation checkpointing) say how layers are
    computed; they change results by rounding only.
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
        """The type of parameters. Inputs have it too, unless their kind of dataset has another type."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def model(self) -> Network:
        """The network with its initial parameters, on the CPU. It is the same on every rank and in every call."""
        layers = self.layers().to(self.dtype)
        if self.channels_last:
            # A convolution uses the memory format of its weights, whatever that of its inputs.
            layers = layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        computation = Computation(AUTOCAST.get(self.precision), self.recompute, self.compiled)
        return Network(dict(layers.named_children()), computation)

    def layers(self) -> nn.Sequential:
        """The network's layers as its file builds them, with the seed's initial parameters."""
        # Forked, so that building a model does not change the rank's own generator, which dropout uses.
        with generators_kept():
            torch.default_generator.manual_seed(self.seed)  # `torch.manual_seed` would seed every GPU, too
            return networks.build(self.spec.network, self.spec.input_shape, self.classes, self.spec.network_options)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples given, a scalar.

        `outputs` are (N, classes) logits, (N, length, classes) logits of a text, or (N, values) predictions.
        """
        if outputs.dtype in AUTOCAST.values():
            outputs = outputs.float()
        if self.spec.loss == "mean_squared_error":
            return F.mse_loss(outputs, targets.to(outputs.dtype))
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        """The number of samples that are classified correctly. A text counts by the share of its correct tokens."""
        right = (outputs.argmax(-1) == targets).double()
        return float(right.reshape(len(right), -1).mean(1).sum())

    def optimizer(self, parameters: Iterable[nn.Parameter] | list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The task's optimiser for these parameters, or groups of parameters, at the learning rate of step 0."""
        chosen: Any = OPTIMIZERS[self.spec.optimizer]
        given: list[Any] = list(parameters)
        held = [p for each in given for p in (each["params"] if isinstance(each, dict) else [each])]
        # On GPUs torch chooses this by itself, where it can. On CPUs it gives the same bits and takes less time.
        foreach = {} if any(is_gpu(p.device) for p in held) else {"foreach": True}
        return chosen(given, lr=self.spec.learning_rate, **foreach, **self.spec.optimizer_options)

    @property
    def warmup_steps(self) -> int:
        """The steps in which the learning rate rises; the schedule begins after them."""
        return round(self.spec.schedule.get("warmup_epochs", 0) * self.steps_per_epoch)

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step. It depends on the step alone, so that resuming needs no scheduler's state."""
        schedule, factor, warmup = self.spec.schedule, 1.0, self.warmup_steps
        begun = step - warmup
        if begun < 0:
            factor = (step + 1) / warmup
        elif schedule["kind"] == "step":
            factor = schedule["gamma"] ** (begun // self.steps_per_epoch // schedule["every_epochs"])
        elif schedule["kind"] == "cosine":
            left = max(1, self.total_steps - warmup)  # a warm-up may take all of a run
            factor = (1 + math.cos(math.pi * begun / left)) / 2
        return self.spec.learning_rate * factor

    def example(self, count: int) -> torch.Tensor:
        """Inputs of `count` samples on the meta device: shape and type without data."""
        dtype = kinds.load(self.kind).input_dtype(self.dtype)
        return torch.empty(count, *self.spec.input_shape, dtype=dtype, device="meta")
