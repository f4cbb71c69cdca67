"""The trainings that the equivalence gate compares.

Floating-point sums in another order diverge chaotically, so one comparison in the run's own precision proves nothing
in either direction. Each trial below sees what the others cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relay.equivalence.verdict import Compared, TrialName
from relay.spec.run import Gate, OwnBatch, Training, changed
from relay.spec.setting import TF32

# In float64 a right strategy stays orders of magnitude below this limit, whatever the order of its sums.
EXACT = 1e-9
# How far the gradients of a right strategy may be from the reference's in one step, relative to their length: both
# round, each in its own order. And how far the losses may be, after 20 steps. Spot checks have the same limits.
GRADIENT_LIMITS = {**dict.fromkeys(TF32, 5e-3), "bf16": 2e-2, "fp16": 5e-3}
LOSS_LIMITS = {"fp64": EXACT, "fp32": 1e-5, **dict.fromkeys(TF32, 1e-3), "bf16": 5e-3, "fp16": 1e-3}
# How far rounding alone may move the reference's losses and parameters in a step that is still compared. Beyond, chaos
# makes of it what it likes: a right strategy, which rounds otherwise, would soon be over the limit.
MOST_ROUNDING = {"fp64": EXACT / 100, "own": 1e-3, "smooth": 1e-5}

# What the learning rate is divided by, one after the other, where rounding or overflow leaves too little to compare.
SLOWDOWNS = (1, 10, 100, 1000)

# Steps before the checkpoint is saved, and after it: of the object that has saved it, and of the one that loads it.
BEFORE, AFTER = 3, 2
PREDICTED = BEFORE + AFTER  # predictions are of a batch that is not trained with

# What the reference decides of a trial.
FROM_REFERENCE = ("steps", "slowdown", "scale", "rounding", "unsteady")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of the gate.

    `limit` bounds the largest difference to the reference (for losses `figures.scaled`); or, where `relative`, the
    parameters' difference divided by how far training has moved them (both as L2 norms over all parameters).
    `sgd_learning_rate` replaces the task's optimizer by SGD with momentum 0.9. Where sums in another order move the
    reference itself (`rounding`), `rounding_margin` times as much is allowed, if that is more than the limit (deep
    networks, adaptive optimizers). Where it is less, so much is allowed, but no less than `least_limit` (None: the
    limit). Where it is more than `most_limit`, nothing is compared: the faults that the trial looks for are as small.
    `lossy`: with the strategy's lossy options, in whose place all others take the exact ones.
    `steady`: parameters that rounding alone moves by more than `most_rounding` of their own first step are not
    compared; the reference names them, as `unsteady`.

    `steps` are those wished for. The reference ends a trial before rounding alone moves it by more than
    `most_rounding` (None: it only has to stay finite). Where that leaves fewer than `least_steps`, it divides the
    learning rate by `slowdown`.
    """

    name: TrialName
    precision: str
    steps: int
    what: str = ""
    limit: float = 0.0
    compares: tuple[Compared, ...] = ()
    relative: bool = False
    rounding_margin: int = 0
    rounding: Mapping[str, float] = field(default_factory=dict)
    least_limit: float | None = None
    most_limit: float = math.inf
    smooth: bool = False
    sgd_learning_rate: float | None = None
    scale: float = 1.0
    lossy: bool = False
    steady: bool = False
    unsteady: Sequence[str] = ()
    most_rounding: float | None = None
    least_steps: int = 1
    slowdown: int = 1

    def as_far_as(self, reference: Mapping[str, Any]) -> Trial:
        """The trial with the steps, the learning rate, the scale and the rounding of its reference."""
        return replace(self, **{name: reference[name] for name in FROM_REFERENCE})

    def limit_of(self, compared: Compared) -> float | None:
        """The largest difference allowed; None where rounding comes so near to faults that they would not be told."""
        least = self.limit if self.least_limit is None else self.least_limit
        allowed = max(least, self.rounding_margin * self.rounding.get(compared, 0.0))
        return allowed if allowed <= max(self.limit, self.most_limit) else None

    def weakened_by(self, reference: Mapping[str, Any]) -> list[str]:
        """What the reference could not be compared with, or not as closely as the trial wishes; for the verdict."""
        notes = []
        if reference["steps"] < self.steps:
            steps, ended = reference["steps"], reference["ended"]
            notes.append(f"{self.name}: {steps} of {self.steps} steps are compared; the next one {ended}")
        if reference["slowdown"] > 1:
            notes.append(f"{self.name}: the learning rate is divided by {reference['slowdown']}")
        compared = self.as_far_as(reference)
        if names := compared.unsteady:
            reason = f"{self.name}: rounding alone gives {len(names)} parameters, such as {names[0]}, another step"
            notes.append(f"{reason}, so that these are not compared")
        for kind in self.compares:
            allowed = compared.limit_of(kind)
            if allowed is not None and allowed <= self.limit:
                continue
            reason = f"{self.name}: rounding alone moves the reference's {kind} by {compared.rounding[kind]:.0e}"
            instead = f"{allowed:.0e} is allowed in place of {self.limit:.0e}" if allowed else "they are not compared"
            notes.append(f"{reason}, so that {instead}")
        return notes


def trials(run: Training, computed_in: str = "", *, lossy: bool = False) -> list[Trial]:
    """The trials for a run of this task and precision; with or without that of lossy options.

    `computed_in` is the precision whose rounding the training has, where its own code turns to a lower one.
    """
    bounded = [replace(_LOSSY, limit=sum(run.strategy.lossy.values()))] if lossy else []
    return [*_algorithm(run), *_precision(run, computed_in or run.computation.precision), *bounded]


_LOSSY = Trial(
    name="lossy",
    what="tanh and average pooling, SGD, with the lossy options, relative to the update",
    precision="fp32",
    steps=10,
    compares=("parameters",),
    relative=True,
    smooth=True,
    sgd_learning_rate=0.005,
    lossy=True,
)


def _algorithm(run: Training) -> list[Trial]:
    """In float64, where a right strategy's differences stay far below a wrong one's."""
    own = Trial(
        name="algorithm",
        what="the task's own training in float64",
        precision="fp64",
        steps=run.length.total_steps,
        limit=EXACT,
        compares=("losses", "parameters"),
        most_rounding=MOST_ROUNDING["fp64"],
        least_steps=20,
    )
    what, steps = "loss times 2^30, learning rate over 2^30, in float64", min(20, own.steps)
    # The scale is also a limit that a usual gradient never reaches.
    return [own, replace(own, name="scaled", what=what, steps=steps, sgd_learning_rate=0.05, scale=2.0**30)]


def _precision(run: Training, computed_in: str) -> list[Trial]:
    """In the run's own precision; chaos lets these see less, the less the lower it is."""
    if run.computation.precision == "fp64":
        return []
    own = Trial(
        name="own precision",
        what=f"the task's own training in {run.computation.precision}",
        precision=run.computation.precision,
        steps=min(20, run.length.total_steps),
        limit=LOSS_LIMITS[computed_in],
        compares=("losses",),
        rounding_margin=10,
        most_rounding=MOST_ROUNDING["own"],
        least_steps=5,
    )
    if computed_in in GRADIENT_LIMITS:
        return [own, replace(SMOOTH, name="gradient", steps=1, precision=run.computation.precision,
            what=f"one step of SGD in {computed_in}, tanh and average pooling, relative to the update",
            limit=GRADIENT_LIMITS[computed_in], least_limit=None, most_rounding=None)]  # fmt: skip
    # The task's own optimizer in the twin, too: adaptive ones have a state that SGD has not.
    adaptive = [] if run.task.optimizer == "sgd" else [OWN_OPTIMIZER]
    # Few small steps: the rounding of sums moves a right strategy's parameters by 3e-5 of their way or less, fp16
    # gradients by 1e-4 or more. After 200 larger steps chaos has overtaken both in deep networks.
    return [own, *(replace(twin, steps=min(twin.steps, run.length.total_steps)) for twin in (SMOOTH, *adaptive))]


SMOOTH = Trial(
    name="smooth twin",
    what="tanh and average pooling, SGD, fp32, relative to the update",
    precision="fp32",
    steps=20,
    limit=5e-5,
    compares=("parameters",),
    relative=True,
    smooth=True,
    sgd_learning_rate=0.005,
    # In deep networks rounding may leave one step. In ResNet-18 sums in another order then differ by 9e-6, and fp16
    # gradients by 3e-4. More steps at a thousandth of the learning rate are hardly more than rounding: 2e-4.
    most_rounding=MOST_ROUNDING["smooth"],
    rounding_margin=3,
    # Sums in another order are as near as 1e-7 in a small network, and noise of 1e-4 in its gradients is 4e-5 away.
    least_limit=1e-5,
    most_limit=1e-4,
)

# Rounding gives 9e-6 of the way or less (Adam, AdamW, Adadelta; LeNet to ResNet-18 and gpt-tiny), averages rounded to
# fp16 1.2e-4 or more, a state in bf16 6e-4 or more.
OWN_OPTIMIZER = replace(
    SMOOTH,
    name="own optimizer",
    what="tanh and average pooling, the task's optimizer, fp32, relative to the update",
    steps=10,
    limit=3e-5,
    sgd_learning_rate=None,
    least_steps=5,
    least_limit=None,
    # Some gradients are nothing but rounding, such as those of an attention's key biases, and Adam makes a whole step
    # of each: in gpt-tiny, sums in another order give 6.6e-5 after one step. Where they give more, `steady` helps.
    most_limit=3e-4,
)

AS_TRAINED = Trial(
    name="as trained",
    what="in float64, with dropout and BatchNorm at work",
    precision="fp64",
    steps=BEFORE + AFTER,
    limit=EXACT,
    compares=("losses", "parameters", "outputs"),
)

# At a run's own batch

OWN_BATCH_STEPS = 2  # the second one has momentum, and another learning rate where a schedule moves it
# Clipping of a scaled loss, and rounding of an optimizer's state, do not depend on the batch.
LEFT_OUT = ("scaled", "own optimizer")
# Of an update of one or two steps. A strategy that averages parameters rounds them in each step: 8e-5 of it in LeNet,
# which 20 steps make small. Products in bf16 give 2e-3 or more; what is sent in fewer bits shows at the small batch.
OF_TWO_STEPS: dict[str, Any] = {"limit": 5e-4, "least_limit": None, "rounding_margin": 10, "most_limit": 1e-3}


def at_own_batch(run: Gate, own: OwnBatch) -> Training:
    """The gate as it trains a few steps at one of its runs' own batches.

    They show what depends on the batch size: how it is divided, its mean, its learning rate, and code that only a large
    batch reaches.
    """
    task = replace(run.task, learning_rate=own.learning_rate)
    per_epoch = run.dataset.train_count // own.global_batch_size
    steps = min(OWN_BATCH_STEPS, run.length.total_steps)
    length = {"epochs": steps / per_epoch, "steps_per_epoch": per_epoch, "total_steps": steps}
    return changed(run, task=task, global_batch_size=own.global_batch_size, **length)


def own_batch_trials(run: Training, computed_in: str) -> list[Trial]:
    """The trials at an own batch. `run` is what `at_own_batch` returns, `computed_in` as `trials` has it."""
    chosen = [trial for trial in trials(run, computed_in) if trial.name not in LEFT_OUT]
    return [replace(trial, **OF_TWO_STEPS) if trial.name == "smooth twin" else trial for trial in chosen]
