"""A task and its data as the gate's trials train them: nothing random, and every sample noted that reaches the loss."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from relay.equivalence.trials import Trial
from relay.networks.gpt import MoE
from relay.spec.run import Training
from relay.task.data import Batch, Mapped, Split, batch_indices
from relay.task.task import Task


@dataclass
class TrialTask(Task):
    """A task as a trial trains it: without dropout, with frozen statistics, its loss noting which samples reach it.

    A sample's id rides in its target, so that it is seen where the loss is computed, whatever a framework did to the
    batch on its way there.
    """

    smooth: bool = False
    scale: float = 1.0
    seen: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def in_trial(cls, run: Training, trial: Trial, *, scale: float) -> TrialTask:
        """The run's task in that trial; networks too large for float64 come shrunken."""
        given = Task.of(run)
        spec = replace(run.task, network_options={**run.task.network_options, **run.task.shrunken})
        if trial.sgd_learning_rate is not None:
            spec = replace(
                spec,
                optimizer="sgd",
                optimizer_options={"momentum": 0.9},
                learning_rate=trial.sgd_learning_rate / scale,
                schedule={"kind": "constant"},
            )
        spec = replace(spec, learning_rate=spec.learning_rate / trial.slowdown)
        # Epochs so short that a schedule by epochs, and a warm-up, move the learning rate within the gate's few steps.
        longest = max(spec.schedule.get("every_epochs", 1), spec.schedule.get("warmup_epochs", 0))
        a_quarter = int(run.length.total_steps // (4 * longest))
        task = {f.name: getattr(given, f.name) for f in fields(Task)} | {"spec": spec, "precision": trial.precision}
        task["steps_per_epoch"] = min(run.length.steps_per_epoch, max(1, a_quarter))
        return cls(**task, smooth=trial.smooth, scale=scale)

    def layers(self) -> nn.Sequential:
        """The network's layers, stilled, and smooth where the trial asks for it."""
        built = super().layers().double()
        if self.smooth:
            _replace(built, nn.ReLU, lambda _: nn.Tanh())
            _replace(built, nn.MaxPool2d, lambda pool: nn.AvgPool2d(pool.kernel_size, pool.stride, pool.padding))
            for mixture in (module for module in built.modules() if isinstance(module, MoE)):
                mixture.chosen = mixture.experts  # no token is sent elsewhere by rounding
        self.notes = still(built, self.spec.input_shape, self.seed)
        return built

    def with_ids(self, targets: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Targets that carry their samples' ids: as multiples of the classes, or as one more column (regression)."""
        if self.classes is not None:
            return targets + ids.to(targets.device).view(-1, *[1] * (targets.dim() - 1)) * self.classes
        return torch.cat([targets.double(), ids.to(targets.device).double().unsqueeze(1)], 1)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The task's loss times the trial's scale; notes the samples."""
        if self.classes is not None:
            ids, targets = targets // self.classes, targets % self.classes
        else:
            ids, targets = targets[:, -1].long(), targets[:, :-1]
        self.seen += ids.reshape(len(ids), -1)[:, 0].tolist()  # a text's tokens carry the same id
        return super().loss(outputs, targets) * self.scale


class _FrozenBatchNorm(nn.BatchNorm2d):
    """BatchNorm that uses its running statistics also in training, and never moves them."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) to the same shape."""
        return F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


def still(model: nn.Sequential, input_shape: tuple[int, ...], seed: int) -> list[str]:
    """Switch dropout off and freeze BatchNorm's statistics; returns what was done, for the verdict.

    Dropout draws other masks in other processes, and BatchNorm's statistics are those of each replica's slice: by
    definition neither is the same training on several replicas. The statistics are first set on a fixed random
    batch, so that a deep network stays in a range in which it can be trained.
    """
    notes = []
    dropouts = [m for m in model.modules() if isinstance(m, (nn.Dropout, nn.Dropout2d))]
    for dropout in dropouts:
        dropout.p = 0.0
    if dropouts:
        notes.append("dropout is switched off in the gate")
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if norms:
        for norm in norms:
            norm.momentum = None  # a cumulative mean: after one batch, that batch's statistics
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model(torch.randn(64, *input_shape, dtype=torch.float64, generator=generator))
        _replace(model, nn.BatchNorm2d, _frozen)
        notes.append("BatchNorm's statistics are frozen in the gate; in training they are those of each replica")
    return notes


def _frozen(norm: nn.BatchNorm2d) -> nn.Module:
    frozen = _FrozenBatchNorm(norm.num_features, norm.eps).to(torch.float64)
    frozen.load_state_dict(norm.state_dict())
    return frozen


def _replace(module: nn.Module, kind: type, make) -> None:  # type: ignore[no-untyped-def]
    """Put `make(child)` in the place of every child of that kind, at any depth."""
    for name, child in module.named_children():
        if isinstance(child, kind):
            setattr(module, name, make(child))
        else:
            _replace(child, kind, make)


class TrialData:
    """The gate's global batches of real data, with the samples' ids in the targets."""

    def __init__(self, run: Training, dataset: Path, device: torch.device) -> None:
        self.run, self.device = run, device
        self.split = Split(dataset, "train", run.task)

    def of(self, run: Training) -> TrialData:
        """The same data in another run's batches."""
        other = copy(self)
        other.run = run
        return other

    def indices(self, step: int) -> torch.Tensor:
        """The samples of a step's global batch."""
        return batch_indices(len(self.split), self.run.batch.global_batch_size, self.run.seed, step)

    def batches(self, task: TrialTask, steps: int, index: int, count: int, first: int = 0) -> Iterator[Batch]:
        """Slice `index` of `count` of every global batch from step `first` to `steps`."""
        samples = Mapped(self.split, self.device, task.dtype)
        for step in range(first, steps):
            indices = self.indices(step).chunk(count)[index]
            inputs, targets = samples.fetch(indices)
            yield inputs, task.with_ids(targets, indices)
