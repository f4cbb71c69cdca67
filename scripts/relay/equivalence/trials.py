"""The trainings that the equivalence gate compares, and the task as it appears in them.

Floating-point sums in another order diverge chaotically, so one comparison in the run's own precision proves nothing
in either direction. Each trial below sees what the others cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from relay.equivalence.verdict import Compared, TrialName
from relay.networks.gpt import MoE
from relay.spec.run import Training
from relay.spec.setting import TF32
from relay.task.data import Batch, Mapped, Split, batch_indices
from relay.task.task import Task

# In float64 a right strategy stays orders of magnitude below this limit, whatever the order of its sums.
EXACT = 1e-9
# How far the gradients of a right strategy may be from the reference's in one step, relative to their length: both
# round, each in its own order. And how far the losses may be, after 20 steps.
GRADIENT_LIMITS = {**dict.fromkeys(TF32, 5e-3), "bf16": 2e-2, "fp16": 5e-3}
LOSS_LIMITS = {**dict.fromkeys(TF32, 1e-3), "bf16": 5e-3, "fp16": 1e-3}
# How far rounding alone may move the reference's losses and parameters in a step that is still compared. Beyond, chaos
# makes of it what it likes: a right strategy, which rounds otherwise, would soon be over the limit.
MOST_ROUNDING = {"fp64": EXACT / 100, "own": 1e-3, "smooth": 5e-6}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of the gate.

    `limit` bounds the largest absolute difference to the reference; or, where `relative`, the parameters' difference
    divided by how far training has moved them (both as L2 norms over all parameters). `sgd_learning_rate` replaces the
    task's optimizer by SGD with momentum 0.9. Where sums in another order move the reference itself,
    `rounding_margin` times as much is allowed, if that is more than the limit (deep networks, adaptive optimizers).
    `lossy`: with the strategy's lossy options, in whose place all others take the exact ones.

    `steps` are those wished for. The reference ends a trial before rounding alone moves it by more than
    `most_rounding` (None: it only has to stay finite). Where that leaves fewer than `least_steps`, it divides the
    learning rate by `slowdown`.
    """

    name: TrialName
    what: str
    precision: str
    steps: int
    limit: float
    compares: tuple[Compared, ...]
    relative: bool = False
    rounding_margin: int = 0
    smooth: bool = False
    sgd_learning_rate: float | None = None
    scale: float = 1.0
    lossy: bool = False
    most_rounding: float | None = None
    least_steps: int = 1
    slowdown: int = 1

    def as_far_as(self, reference: Mapping[str, Any]) -> Trial:
        """The trial with as many steps, and at the learning rate, as its reference can be compared with."""
        return replace(self, steps=reference["steps"], slowdown=reference["slowdown"])

    def limit_with(self, rounding: float) -> float:
        """The limit, where sums in another order have moved the reference by `rounding`."""
        return max(self.limit, self.rounding_margin * rounding)

    def shortened_by(self, reference: Mapping[str, Any]) -> list[str]:
        """What the reference could not be compared with, for the verdict."""
        notes = []
        if reference["steps"] < self.steps:
            steps, ended = reference["steps"], reference["ended"]
            notes.append(f"{self.name}: {steps} of {self.steps} steps are compared; the next one {ended}")
        if reference["slowdown"] > 1:
            notes.append(f"{self.name}: the learning rate is divided by {reference['slowdown']}")
        return notes


def trials(run: Training, *, lossy: bool = False) -> list[Trial]:
    """The trials for a run of this task and precision; with or without that of lossy options."""
    bounded = [replace(_LOSSY, limit=sum(run.strategy.lossy.values()))] if lossy else []
    return [*_algorithm(run), *_precision(run), *bounded]


_LOSSY = Trial(
    name="lossy",
    what="tanh and average pooling, SGD, with the lossy options, relative to the update",
    precision="fp32",
    steps=10,
    limit=0.0,  # the run's options say it
    compares=("parameters",),
    relative=True,
    smooth=True,
    sgd_learning_rate=0.005,
    lossy=True,
)


def _algorithm(run: Training) -> list[Trial]:
    """In float64, where a right strategy's differences stay far below a wrong one's."""
    return [
        Trial(
            name="algorithm",
            what="the task's own training in float64",
            precision="fp64",
            steps=run.length.total_steps,
            limit=EXACT,
            compares=("losses", "parameters"),
            most_rounding=MOST_ROUNDING["fp64"],
            least_steps=20,
        ),
        Trial(
            name="scaled",
            what="loss times 1,024, learning rate over 1,024, in float64 (sees hidden gradient clipping)",
            precision="fp64",
            steps=min(50, run.length.total_steps),
            limit=EXACT,
            compares=("losses", "parameters"),
            most_rounding=MOST_ROUNDING["fp64"],
            least_steps=20,
            sgd_learning_rate=0.05,
            scale=1024.0,
        ),
    ]


def _precision(run: Training) -> list[Trial]:
    """In the run's own precision; chaos lets these see less, the less the lower it is."""
    if run.computation.precision == "fp64":
        return []
    own = Trial(
        name="own precision",
        what=f"the task's own training in {run.computation.precision}",
        precision=run.computation.precision,
        steps=min(20, run.length.total_steps),
        limit=LOSS_LIMITS.get(run.computation.precision, 1e-5),
        compares=("losses",),
        rounding_margin=10,
        most_rounding=MOST_ROUNDING["own"],
        least_steps=5,
    )
    if run.computation.precision in GRADIENT_LIMITS:
        return [own, replace(SMOOTH, name="gradient", steps=1, precision=run.computation.precision,
            what=f"one step of SGD in {run.computation.precision}, tanh and average pooling, relative to the update",
            limit=GRADIENT_LIMITS[run.computation.precision], most_rounding=None)]  # fmt: skip
    # The task's own optimizer in the twin, too: adaptive ones have a state that SGD has not.
    adaptive = [] if run.task.optimizer == "sgd" else [OWN_OPTIMIZER]
    # Few small steps: the rounding of sums moves a right strategy's parameters by 3e-5 of their way or less, fp16
    # gradients by 1e-4 or more. After 200 larger steps chaos has overtaken both in deep networks.
    return [own, *(replace(twin, steps=min(twin.steps, run.length.total_steps)) for twin in (SMOOTH, *adaptive))]


SMOOTH = Trial(
    name="smooth twin",
    what="tanh and average pooling, SGD, fp32, relative to the update (sees lossy communication)",
    precision="fp32",
    steps=20,
    limit=5e-5,
    compares=("parameters",),
    relative=True,
    smooth=True,
    sgd_learning_rate=0.005,
    most_rounding=MOST_ROUNDING["smooth"],
    least_steps=3,
)

# Rounding gives 9e-6 of the way or less (Adam, AdamW, Adadelta; LeNet to ResNet-18 and gpt-tiny), averages rounded to
# fp16 1.2e-4 or more, a state in bf16 6e-4 or more.
OWN_OPTIMIZER = Trial(
    name="own optimizer",
    what="tanh and average pooling, the task's optimizer, fp32, relative to the update (sees its state rounded)",
    precision="fp32",
    steps=10,
    limit=3e-5,
    compares=("parameters",),
    relative=True,
    smooth=True,
    most_rounding=MOST_ROUNDING["smooth"],
    least_steps=5,
    # Some gradients are nothing but rounding, such as those of an attention's key biases, and Adam makes a whole step
    # of each: in gpt-tiny, sums in another order give 6.6e-5 after one step.
    rounding_margin=3,
)


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
        """Targets that carry their samples' ids: as multiples of the classes, or as a second column (regression)."""
        if self.classes is not None:
            return targets + ids.to(targets.device).view(-1, *[1] * (targets.dim() - 1)) * self.classes
        return torch.cat([targets.double(), ids.to(targets.device).double().unsqueeze(1)], 1)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The task's loss times the trial's scale; notes the samples."""
        if self.classes is not None:
            ids, targets = targets // self.classes, targets % self.classes
        else:
            ids, targets = targets[:, 1].long(), targets[:, :1]
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
