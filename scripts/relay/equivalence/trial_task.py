"""A task and its data as the gate's trials train them: nothing random, and every sample noted that reaches the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from relay.equivalence.first_pass import FirstPass
from relay.equivalence.trials import Trial
from relay.process.devices import is_gpu
from relay.spec.run import Training
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.calls import on_device
from relay.task.data import Mapped
from relay.task.draws import Draws
from relay.task.in_float64 import InFloat64
from relay.task.lowered import computed_in
from relay.task.modes import everywhere, optimizers_outside, outside
from relay.task.places import needs_gpu
from relay.task.smooth import Smooth, all_experts
from relay.task.split import Chosen, chosen
from relay.task.still import FrozenNorms, Stilled, still

# BatchNorm's statistics are frozen on so many samples at most.
MEASURED_SAMPLES = 64
CPU = torch.device("cpu")
BEYOND = 16  # how many times beyond the limit of clipping, or below it, a scaled loss takes the gradients' norm
Kind = TypeVar("Kind", bound="TrialTask")
KEPT = "what it computes in float32 whatever the precision is computed in float64 in the gate's trials in float64"


class Identified(NamedTuple):
    """A batch whose samples' ids ride along, so that they are seen wherever the loss is computed.

    Whatever a framework does to a batch on its way there, it does to both.
    """

    data: Batch
    ids: torch.Tensor


@dataclass
class TrialTask(BoundTask):
    """A task as a trial trains it: without dropout, with frozen statistics, its loss noting which samples reach it.

    `first` is the batch on which BatchNorm's statistics are frozen. `sgd`: with SGD in place of its own optimiser.
    `looks_on`: where the model is looked at before it is trained.
    `lowers`: the model or the loss asks for float32 by name.
    """

    first: Batch = None
    looks_on: torch.device = CPU
    smooth: bool = False
    lowers: bool = False
    sgd: bool = False
    scale: float = 1.0
    seen: list[int] = field(default_factory=list)
    stilled: Stilled = field(default_factory=Stilled)
    draws: Draws = field(default_factory=Draws)

    @property
    def notes(self) -> list[str]:
        """What was changed in the model, for the verdict."""
        return [*self.stilled.notes, *([KEPT] if self.lowers else [])]

    def built(self) -> nn.Module:
        """The model, stilled, and with all experts in the smooth twin."""
        model = self.as_written()
        if self.smooth:
            all_experts(model)
        with InFloat64(), Smooth() if self.smooth else nullcontext():
            self.stilled = still(on_device(model, self.looks_on), self._compute)
        if self.compiled and self.stilled.draws:
            self.compiled = False  # compiled code draws in ways of its own
            self.stilled.notes.append("it is not compiled in the gate, because it draws random numbers")
        return on_device(model, CPU)

    def as_written(self) -> nn.Module:
        """The model as the user's file builds it, in float64 with the initial values of float32."""
        with outside():
            return batches.model_of_type(BoundTask.built(self), torch.float64)

    def _compute(self, model: nn.Module) -> None:
        first = batches.moved(batches.cast(self.first, torch.float64), self.looks_on)
        arguments, keywords = self.arguments(Identified(first, torch.empty(0)))
        model(*arguments, **keywords)

    def computing(self) -> AbstractContextManager[Any]:
        """What has to be around every step and prediction, once the model is built: draws, smooth functions.

        Optimisers' steps are left alone.
        """
        stack = ExitStack()
        stack.enter_context(self.in_float64())
        if self.smooth:
            stack.enter_context(everywhere(Smooth))
        if self.stilled.functional_norms:
            stack.enter_context(everywhere(FrozenNorms))
        if self.stilled.draws:
            stack.enter_context(self.draws.fixed())
        stack.enter_context(optimizers_outside())
        return stack

    def in_float64(self) -> AbstractContextManager[Any]:
        """In a trial in float64, whatever else computes would round to float32 by itself."""
        return everywhere(InFloat64) if self.lowers and self.dtype == torch.float64 else nullcontext()

    def arguments(self, batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those of the model, which sees no ids."""
        return super().arguments(batch.data)

    def loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The task's loss times the trial's scale; notes the samples."""
        self.seen += batch.ids.tolist()
        return super().loss(outputs, batch.data) * self.scale

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """The task's, or SGD with momentum."""
        held = list(parameters)
        if not self.sgd:
            return super().optimizer(held)
        foreach = {} if any(is_gpu(each.device) for each in held) else {"foreach": True}
        return torch.optim.SGD(held, lr=self.spec.learning_rate, momentum=0.9, **foreach)

    def example(self, count: int) -> Batch:
        """As of the task, with ids."""
        return Identified(super().example(count), torch.arange(count))


class TrialData:
    """A training's tasks in trials, and its global batches of real data with their samples' ids."""

    def __init__(self, run: Training, folder: Path, device: torch.device) -> None:
        self.run, self.folder, self.device = run, folder, device

    def of(self, run: Training) -> TrialData:
        """The same data in another run's batches."""
        other = copy(self)
        for name in ("first", "_first_pass"):
            other.__dict__.pop(name, None)
        other.run = run
        return other

    def task(self, trial: Trial, *, scale: float = 1.0) -> TrialTask:
        """The run's task in that trial; a model too large for float64 comes shrunken."""
        return self.of_kind(TrialTask, trial, scale)

    def of_kind(self, kind: type[Kind], trial: Trial, scale: float = 1.0) -> Kind:
        """The same, of a derived kind."""
        run, sgd = self.run, trial.sgd_learning_rate is not None
        # Made small like the datasets, which all trials share; its learning rate and batch are this run's own.
        spec = replace(run.task, options=self._small.spec.options)
        if trial.sgd_learning_rate is not None:
            rate, constant = trial.sgd_learning_rate / scale, {"kind": "constant"}
            options = {"momentum": 0.9}
            spec = replace(spec, optimizer="sgd", optimizer_options=options, learning_rate=rate, schedule=constant)
        spec = replace(spec, learning_rate=spec.learning_rate / trial.slowdown)
        # Epochs so short that a schedule by epochs, and a warm-up, move the learning rate within the gate's few steps.
        longest = max(spec.schedule.get("every_epochs", 1), spec.schedule.get("warmup_epochs", 0))
        a_quarter = int(run.length.total_steps // (4 * longest))
        task = replace(
            kind.of(run, self.folder),
            spec=spec,
            precision=trial.precision,
            steps_per_epoch=min(run.length.steps_per_epoch, max(1, a_quarter)),
            first=self.first,
            looks_on=self.looks_on,
            smooth=trial.smooth,
            lowers=self.lowers,
            sgd=sgd,
            scale=scale,
        )
        # The datasets are made once for all trials, and with them what the user's object keeps of them.
        own = copy(self._small.own)
        # A scaled loss shows clipping that nobody asked for, and the task's own would hide it.
        own.clip_grad_norm = None if trial.scale != 1 else self.clip_grad_norm
        own.learning_rate, own.global_batch_size = spec.learning_rate, spec.global_batch_size
        task.__dict__ |= {"datasets": self._small.datasets, "own": own}
        return task

    @cached_property
    def first(self) -> Batch:
        """The first samples of the first global batch, on the CPU, in float64."""
        samples = self._small.split("train")
        which = self._chosen(0)
        read = samples.read(which._replace(positions=which.positions[:MEASURED_SAMPLES]))
        return samples.ready(read, CPU)

    @property
    def padded(self) -> bool:
        """Whether samples have other shapes, so that a slice may be padded less than the whole batch."""
        return self.run.task.card.equal_shapes is False

    @property
    def lowers(self) -> bool:
        """Whether the model or the loss asks for float32 in float64, as seen of the first samples."""
        return self._first_pass.lowers

    @cached_property
    def computed_in(self) -> str:
        """The precision whose rounding the run's own training has: the run's, or a lower one of the task's own."""
        precision = self.run.computation.precision
        own = Trial(name="own precision", precision=precision, steps=1)
        return precision if precision == "fp64" else computed_in(self.task(own), self.device)

    @property
    def clip_grad_norm(self) -> float | None:
        """That of the task, or less: a quarter of the first samples' norm, so that the gate sees clipping at work."""
        most = self._small.own.clip_grad_norm
        return None if most is None else min(most, self._first_pass.norm / 4 or most)

    @property
    def across(self) -> float:
        """A scale of the loss that takes gradients to the other side of the norm at which a step clips; 1 for none.

        A step that always rescales its gradients to that norm, or never, is right on one side.
        """
        limit, gradients = self.clip_grad_norm or self._first_pass.clipped_at, self._first_pass.norm
        if not limit or not gradients:
            return 1.0
        return 2.0 ** round(math.log2(limit / gradients)) * (BEYOND if limit > gradients else 1 / BEYOND)

    @property
    def looks_on(self) -> torch.device:
        """Where the model is looked at: on the CPU; on the training's GPU where the model computes on none but that."""
        return self._first_pass.device

    @cached_property
    def _first_pass(self) -> FirstPass:
        try:
            return FirstPass.of(self._small, self.first, CPU)
        except Exception as error:
            if not needs_gpu(error) or not is_gpu(self.device):
                raise
        return FirstPass.of(self._small, self.first, self.device)

    @cached_property
    def _small(self) -> BoundTask:
        spec = replace(self.run.task, options={**self.run.task.options, **self.run.task.small})
        task = replace(BoundTask.of(self.run, self.folder), spec=spec, precision="fp64")
        task.datasets  # noqa: B018  # the user's object may keep something of them
        return task

    @cached_property
    def count(self) -> int:
        """The samples of the training set."""
        return len(self._small.split("train"))

    def _chosen(self, step: int, index: int = 0, of: int = 1) -> Chosen:
        return chosen(self.count, self.run.batch.global_batch_size, self.run.seed, step, index, of)

    def indices(self, step: int) -> torch.Tensor:
        """The samples of a step's global batch."""
        return self._chosen(step).positions

    def batch(self, task: BoundTask, step: int, index: int = 0, count: int = 1) -> Identified:
        """Slice `index` of `count` of a step's global batch; the whole one, where nothing is said."""
        return next(self.batches(task, step + 1, index, count, step))

    def batches(self, task: BoundTask, steps: int, index: int, count: int, first: int = 0) -> Iterator[Identified]:
        """Slice `index` of `count` of every global batch from step `first` to `steps`."""
        with outside():
            samples = Mapped(task.split("train"), self.device)
        for step in range(first, steps):
            with outside():  # a new epoch's order is drawn, too
                which = self._chosen(step, index, count)
                batch = Identified(samples.fetch(which), which.positions.to(self.device))
            yield batch
