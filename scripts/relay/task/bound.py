"""A task bound to one training: what strategies, proofs and the loop see of it."""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import nn

from relay.base.errors import UserError
from relay.process.devices import is_gpu
from relay.process.generators import drawn_from
from relay.spec.run import Training
from relay.spec.tasks import TaskSpec
from relay.task import batches, recompute, units
from relay.task.batches import Along, Batch
from relay.task.built import check, is_compiled, plain
from relay.task.calls import Readings
from relay.task.learning_rate import FACTOR, LearningRate
from relay.task.load import task_of
from relay.task.modes import outside
from relay.task.split import Chosen, Split
from relay.task.user import Task

# The types of matrix products and convolutions; parameters, their updates and the loss stay in float32.
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The first scale of fp16's loss. It doubles after 2,000 steps without overflow. With a low start, no steps are lost to
# overflows at the beginning.
FIRST_SCALE = 1024.0
# The optimisers that are fused on CPUs. SGD could be, but not where gradients are sparse.
FUSED = (torch.optim.Adam, torch.optim.AdamW)


@dataclass
class BoundTask:
    """A task with its seed, its arithmetic and its length in steps.

    `precision` is one of `relay.spec.setting.Precision`. The schedule needs `steps_per_epoch` and `total_steps`.
    `compiled`, `channels_last` and `recompute` (activation checkpointing) say how the model is computed; they change
    results by rounding only. Convolutions take the order in memory of their inputs: with `channels_last` batches come
    so. Parameters stay contiguous, because FSDP, DeepSpeed and Horovod refuse others. `captured`: a GPU may
    replay a step. `folder` holds the prepared data.
    """

    # The sizes of the batches that reach the loss in a step that a spot check watches; None in others. They belong to
    # the class, so that a strategy which keeps a copy of the task is watched, too.
    parts: ClassVar[list[int] | None] = None

    spec: TaskSpec
    seed: int
    precision: str
    steps_per_epoch: int
    total_steps: int
    compiled: bool = False
    channels_last: bool = False
    recompute: bool = False
    captured: bool = False
    folder: Path | None = None

    @classmethod
    def of(cls, run: Training, folder: Path | None = None) -> Self:
        """The task as a run trains it."""
        return cls(
            run.task,
            run.seed,
            run.computation.precision,
            run.length.steps_per_epoch,
            run.length.total_steps,
            compiled=run.computation.compile,
            channels_last=bool(run.computation.channels_last),
            recompute=run.computation.activation_checkpointing,
            captured=run.computation.cuda_graph,
            folder=folder,
        )

    def __post_init__(self) -> None:
        self.autocast = AUTOCAST.get(self.precision)
        self.unwrapped = False  # whether the user's file compiles the model
        self._accepted: frozenset[str] | None = None  # keywords of the model's forward; None: all

    @cached_property
    def own(self) -> Task:
        """The user's object."""
        return task_of(self.spec)

    def apart(self) -> Self:
        """The same for another model, whose user's object may keep what it makes."""
        task = copy(self)
        task.__dict__["own"] = copy(self.own)
        return task

    @property
    def dtype(self) -> torch.dtype:
        """The type of parameters, and of a batch's floating-point numbers."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def model(self) -> nn.Module:
        """The model with its initial parameters, on the CPU. It is the same on every rank and in every call."""
        model = batches.model_of_type(self.built(), self.dtype)
        if self.recompute:
            recompute.apply(model, self.blocks(model))
        if self.compiled:
            if type(model).__module__.startswith("torch."):
                model.forward = MethodType(_forward, model)
            model.compile()
        return model

    def built(self) -> nn.Module:
        """The model as the user's file builds it, with the seed's initial parameters, in training mode.

        Its own `train` may leave modules in evaluation mode, such as a backbone that is not trained: then they begin
        each job, and go on after each evaluation, so.

        Raises UserError for what is no module, and for parameters that cannot be trained here.
        """
        with drawn_from(self.seed):  # building a model does not change the rank's own generators
            model = self.own.model()
        if not isinstance(model, nn.Module):
            raise UserError(
                f"task {self.spec.name}: model() returned {type(model).__name__}; allowed: a torch.nn.Module"
            )
        self.unwrapped = is_compiled(model)
        check(model, self.spec.name)
        model = plain(model)
        model.train()
        taken = inspect.signature(model.forward).parameters.values()
        every = any(each.kind is each.VAR_KEYWORD for each in taken)
        self._accepted = None if every else frozenset(each.name for each in taken)
        return model

    def blocks(self, model: nn.Module, readings: Readings | None = None) -> list[tuple[str, nn.Module]]:
        """The modules that are sharded, recomputed and cut as units, with their names in the model.

        With what has been seen of a forward pass, each holds only parameters that are read while it is called.
        """
        return units.blocks(model, self.own.blocks(model), readings)

    def tensor_plan(self, model: nn.Module) -> Mapping[str, str] | None:
        """The user's plan of tensor parallelism; None where it has to be found."""
        plan: Any = self.own.tensor_plan(model)
        if plan is not None and not isinstance(plan, Mapping):
            raise UserError(
                f"task {self.spec.name}: tensor_plan() returned {type(plan).__name__}; allowed: a dict of names of "
                "modules, or None"
            )
        return cast("Mapping[str, str] | None", plan)

    @property
    def along(self) -> Along:
        """Where samples are counted in what a prediction gives, as a look has seen it."""
        return self.spec.card.outputs_along

    def arguments(self, batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and the keywords with which the model is called for a batch."""
        given = self.own.inputs(batch)
        if isinstance(given, Mapping):
            own = type(self.own).inputs is not Task.inputs  # then the user has chosen
            kept = {k: v for k, v in given.items() if own or self._accepted is None or k in self._accepted}
            return (), kept
        return (tuple(given) if isinstance(given, (tuple, list)) else (given,)), {}

    def outputs(self, module: nn.Module, batch: Batch) -> Any:
        """What a module, the model or one that wraps it, gives for a batch. Autocast covers the forward pass only."""
        arguments, keywords = self.arguments(batch)
        with self.arithmetic(batches.leaves(batch)[0].device):
            return module(*arguments, **keywords)

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of the training's precision, for whatever computes a part of the model."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)

    def computing(self) -> AbstractContextManager[Any]:
        """What has to be around every step and prediction of a plain training; something in proofs alone."""
        return nullcontext()

    def loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The mean loss over the batch's samples, a scalar. Raises UserError for anything else."""
        loss = self.own.loss(in_float32(outputs), batch)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UserError(
                f"task {self.spec.name}: loss() returned {got}; allowed: the batch's mean loss, a scalar tensor"
            )
        return loss

    @torch.no_grad()
    def metrics(self, outputs: Any, batch: Batch) -> dict[str, float]:
        """The task's further means over the batch's samples."""
        return {name: float(value) for name, value in self.own.metrics(in_float32(outputs), batch).items()}

    def final_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """What evaluations tell of the metrics' means over a whole set."""
        return {name: float(value) for name, value in self.own.final_metrics(means).items()}

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The task's optimiser for these parameters, at the learning rate of step 0."""
        optimizer: Any = self.own.optimizer(list(parameters))
        if not isinstance(optimizer, torch.optim.Optimizer):
            got = type(optimizer).__name__
            why, one = "", "a torch.optim.Optimizer"
            if isinstance(optimizer, (tuple, list)):
                why, one = "a step has one loss and one backward pass; ", f"{one}, with groups of parameters"
            raise UserError(f"task {self.spec.name}: optimizer() returned {got}; {why}allowed: {one}")
        for group in optimizer.param_groups:
            group |= self.spec.optimizer_options
            group["lr"] = float(group["lr"])  # a tensor of the user's would be changed in place
            if group["lr"] != self.spec.learning_rate:
                group[FACTOR] = group["lr"] / self.spec.learning_rate
            # On GPUs torch chooses by itself, where it can. On CPUs a fused step takes a third of the time of one by
            # `foreach`, which has the same bits as a plain step and takes less time, too.
            if group.get("foreach", ...) is None and not any(is_gpu(each.device) for each in group["params"]):
                if group.get("fused", False) is None:
                    group["fused"] = type(optimizer) in FUSED and not group["differentiable"]
                group["foreach"] = not group.get("fused")
        return optimizer

    def clip(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients where the task says so, in a process that has all of them."""
        if self.own.clip_grad_norm is not None:
            held = [each for group in optimizer.param_groups for each in group["params"]]
            with outside():  # a smooth twin's functions are for the model
                nn.utils.clip_grad_norm_(held, self.own.clip_grad_norm)

    @cached_property
    def learning_rate(self) -> LearningRate:
        """From a step to its learning rate."""
        return LearningRate(self.spec, self.own, self.steps_per_epoch, self.total_steps)

    @cached_property
    def datasets(self) -> tuple[Any, Any]:
        """The task's map-style datasets, for training and for testing. Raises UserError where there are no two."""
        assert self.folder is not None, "a task without data has no datasets"
        datasets = self.own.datasets(self.folder)
        if not isinstance(datasets, (tuple, list)) or len(datasets) != 2:
            raise UserError(f"task {self.spec.name}: datasets() must return two datasets, for training and for testing")
        return datasets[0], datasets[1]

    def split(self, name: Literal["train", "test"]) -> Split:
        """One of the two, as the training reads it. Raises UserError where it cannot be read."""
        called = "test" if name == "test" else "training"
        dataset = self.datasets[name == "test"]
        return Split(self.own, dataset, self.seed, self.dtype, called, channels_last=self.channels_last)

    def example(self, count: int) -> Batch:
        """A batch of the first samples of the training set, on the CPU; repeated, where there are fewer."""
        split = self.split("train")
        return split.ready(split.read(Chosen(torch.arange(count) % len(split))), torch.device("cpu"))


def _forward(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    """A forward pass with a frame outside torch: the compiler skips torch's own, such as that of nn.Sequential."""
    return type(module).forward(module, *arguments, **keywords)


def in_float32(outputs: Any) -> Any:
    """Outputs whose numbers of 16 bits are float32, as losses want them."""
    low = AUTOCAST.values()
    return batches.each(lambda tensor: tensor.float() if tensor.dtype in low else tensor, outputs)
