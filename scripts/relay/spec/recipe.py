"""The fields of a setting that say how it learns, batch, optimizer, schedule and length (see `setting.py`); and which
steps are computed again to check it."""

from dataclasses import dataclass
from typing import Literal

from relay.spec.declare import Axis, declare

Scaling = Literal["none", "linear", "square_root"]
Schedule = Literal["constant", "step", "cosine", "scheduler"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many samples a step takes, and how the task's learning rate is scaled for that number."""

    global_batch_size: int = declare(
        means="samples per step over all devices",
        label="batch {}",
        axis=Axis(null="the config's key of that name, or the task's"),
        ge=1,
    )
    learning_rate_scaling: Scaling = declare(
        "none",
        means="how the learning rate grows with the global batch size",
        label="learning-rate scaling {}",
        bears_on="identity",
        axis=Axis(null="the config's"),
    )


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """The optimizer and the schedule of the learning rate, where a comparison may differ from the task.

    The planner writes these values into the run's task, from which the optimizer is made. The task is part of the
    identity, so that a value that the task has anyway makes no other run.
    """

    momentum: float | None = declare(
        None,
        means="the part of the last update that SGD makes again; for tasks with SGD",
        label="momentum {:g}",
        bears_on="gate",
        axis=Axis(null="the task's"),
        ge=0,
        lt=1,
    )
    weight_decay: float | None = declare(
        None,
        means="the part of each parameter that is added to its gradient; AdamW subtracts it, times the learning rate",
        label="weight decay {:g}",
        bears_on="gate",
        axis=Axis(null="the task's"),
        ge=0,
        allow_inf_nan=False,
    )
    learning_rate_schedule: Schedule | None = declare(
        None,
        means="how the learning rate goes on after the warm-up: constant, step (multiplied by "
        "learning_rate_step_gamma every learning_rate_step_epochs), cosine (to 0 at the run's end)",
        label="{} learning rate",
        bears_on="gate",
        axis=Axis(null="the task's"),
    )
    learning_rate_step_epochs: int | None = declare(
        None,
        means="epochs between the steps of the schedule `step`",
        label="a step each epoch|a step every {} epochs",
        bears_on="gate",
        axis=Axis(null="the task's, if its schedule is `step`"),
        ge=1,
    )
    learning_rate_step_gamma: float | None = declare(
        None,
        means="factor of each step of the schedule `step`",
        label="gamma {:g}",
        bears_on="gate",
        axis=Axis(null="the task's, if its schedule is `step`"),
        gt=0,
        le=1,
    )
    learning_rate_warmup_epochs: float | None = declare(
        None,
        means="epochs at the run's start in which the learning rate rises linearly, step by step; the schedule "
        "begins after them",
        label="{:g} warm-up epoch|{:g} warm-up epochs",
        bears_on="gate",
        axis=Axis(null="the task's, 0 in all that there are"),
        ge=0,
        allow_inf_nan=False,
    )


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a run is, and when it evaluates, saves and begins to measure."""

    epochs: float = declare(means="passes over the training set", label="{:g} epoch|{:g} epochs", bears_on="identity")
    steps_per_epoch: int = declare(means="steps of an epoch, without the last, partial batch", ge=1)
    total_steps: int = declare(means="steps of the whole run", bears_on="identity", ge=1)
    evaluate_every_steps: int = declare(means="steps between evaluations", bears_on="", ge=1)
    warmup_steps: int = declare(10, means="steps at the start of each job that are not timed", bears_on="", ge=0)
    checkpoint_minutes: float = declare(10.0, means="minutes between checkpoints within a job", bears_on="", gt=0)
    checkpoint_every_steps: int | None = declare(
        None,
        means="steps between checkpoints, counted from the run's start, beside checkpoint_minutes",
        bears_on="",
        ge=1,
    )
    observed_steps: int = declare(
        20, means="steps at the end of a run's first job that show what a step's time goes to", bears_on="", ge=0
    )
    monitor_seconds: float = declare(
        1.0, means="seconds between two looks at the CPUs, memory and GPUs that a run uses; 0: none", bears_on="", ge=0
    )


@dataclass(frozen=True, kw_only=True)
class SpotChecks:
    """How many spots of a run are checked, and how many `steps` each of them has.

    `random_steps` lie anywhere. `hops` lie across a planned end of a job: it saves, and the next one loads. `end` are
    the run's last steps. They do not belong to a run's identity, because they change nothing that it computes.
    """

    random_steps: int = 1
    hops: int = 1
    end: bool = True
    steps: int = 2

    @property
    def any(self) -> bool:
        """Whether there is anything to check."""
        return self.random_steps > 0 or self.hops > 0 or self.end
