"""What can be trained: every dataset and every task, as plain data that the planner reads without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from relay.errors import UserError


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A dataset as the dataset stage prepares it.

    `shape` is one sample's: (channels, height, width) of uint8 images, or (features,) of float32 vectors.
    `classes` is None for regression. `version` changes whenever the prepared arrays would.
    """

    name: str
    version: str
    kind: Literal["images", "vectors"]
    shape: tuple[int, ...]
    classes: int | None
    train_count: int
    test_count: int

    @property
    def directory_name(self) -> str:
        """Where it lies below `results/datasets/`: synthetic sets of two shapes must not share a folder."""
        if self.name != "synthetic":
            return self.name
        shape = "x".join(map(str, self.shape))
        return f"synthetic-{shape}-{self.train_count}-{self.test_count}-{self.classes}"


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A network, a dataset and an optimiser: what is trained.

    `learning_rate` belongs to `global_batch_size`; a run with another batch may scale it (`learning_rate_scaling`).
    `schedule` multiplies it: {"kind": "constant"}, {"kind": "step", "every_epochs": n, "gamma": g} or
    {"kind": "cosine"}.
    `shrunken` holds network options for the equivalence gate where the whole network would take too long in float64.
    """

    name: str
    network: str
    dataset: str
    input_shape: tuple[int, ...]
    loss: Literal["cross_entropy", "mean_squared_error"] = "cross_entropy"
    optimizer: Literal["sgd", "adam", "adamw", "adadelta"]
    learning_rate: float
    global_batch_size: int
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    network_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"kind": "constant"})
    shrunken: Mapping[str, Any] = field(default_factory=dict)


DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            name="digits",
            version="1",
            kind="images",
            shape=(1, 8, 8),
            classes=10,
            train_count=1437,
            test_count=360,
        ),
        DatasetSpec(
            name="mnist",
            version="1",
            kind="images",
            shape=(1, 28, 28),
            classes=10,
            train_count=60_000,
            test_count=10_000,
        ),
        DatasetSpec(
            name="cifar10",
            version="1",
            kind="images",
            shape=(3, 32, 32),
            classes=10,
            train_count=50_000,
            test_count=10_000,
        ),
        # The random regression data of document 001 (10 features) and of document 004 (20 features).
        DatasetSpec(
            name="random-10",
            version="1",
            kind="vectors",
            shape=(10,),
            classes=None,
            train_count=1000,
            test_count=200,
        ),
        DatasetSpec(
            name="random-20",
            version="1",
            kind="vectors",
            shape=(20,),
            classes=None,
            train_count=2048,
            test_count=512,
        ),
        # For benchmarks: the config's `synthetic` block says shape and counts.
        DatasetSpec(
            name="synthetic",
            version="1",
            kind="images",
            shape=(3, 32, 32),
            classes=10,
            train_count=10_000,
            test_count=2_000,
        ),
    )
}

# Document 000 trains LeNet with SGD at 0.1, with and without momentum; these values reach 60 % on CIFAR-10.
_LENET: dict[str, Any] = {
    "network": "lenet",
    "input_shape": (3, 32, 32),
    "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9},
}
_RESNET: dict[str, Any] = {
    "network": "resnet18",
    "dataset": "cifar10",
    "input_shape": (3, 32, 32),
    "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9, "weight_decay": 5e-4},
    "learning_rate": 0.1,
    "global_batch_size": 128,
    "schedule": {"kind": "cosine"},
    "shrunken": {"width": 4},
}

TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        TaskSpec(name="lenet-digits", dataset="digits", learning_rate=0.02, global_batch_size=64, **_LENET),
        TaskSpec(
            name="lenet-cifar10",
            dataset="cifar10",
            learning_rate=0.05,
            global_batch_size=128,
            schedule={"kind": "cosine"},
            **_LENET,
        ),
        # Document 000's Lightning example trains the same network with Adam.
        TaskSpec(
            name="lenet-adam-cifar10",
            network="lenet",
            dataset="cifar10",
            input_shape=(3, 32, 32),
            optimizer="adam",
            learning_rate=0.001,
            global_batch_size=128,
        ),
        TaskSpec(name="lenet-synthetic", dataset="synthetic", learning_rate=0.02, global_batch_size=64, **_LENET),
        TaskSpec(
            name="utsa-mnist",
            network="utsa_cnn",
            dataset="mnist",
            input_shape=(1, 28, 28),
            optimizer="sgd",
            optimizer_options={"momentum": 0.5},
            learning_rate=0.01,
            global_batch_size=64,
        ),
        TaskSpec(
            name="princeton-mnist",
            network="princeton_cnn",
            dataset="mnist",
            input_shape=(1, 28, 28),
            optimizer="adadelta",
            learning_rate=1.0,
            global_batch_size=64,
            schedule={"kind": "step", "every_epochs": 1, "gamma": 0.7},
        ),
        TaskSpec(name="resnet18-cifar10", network_options={"norm": "batch"}, **_RESNET),
        TaskSpec(name="resnet18-group-cifar10", network_options={"norm": "group"}, **_RESNET),
        TaskSpec(
            name="linear-random10",
            network="linear",
            dataset="random-10",
            input_shape=(10,),
            loss="mean_squared_error",
            optimizer="sgd",
            learning_rate=0.01,
            global_batch_size=32,
        ),
        TaskSpec(
            name="linear-random20",
            network="linear",
            dataset="random-20",
            input_shape=(20,),
            loss="mean_squared_error",
            optimizer="sgd",
            learning_rate=0.001,
            global_batch_size=32,
        ),
    )
}


def magnification(shape: tuple[int, ...], task: TaskSpec) -> tuple[int, int]:
    """How often channels are repeated and pixels magnified, so that images of `shape` fit the task's network.

    Raises UserError where no whole factors do.
    """
    factors = [wanted // given for wanted, given in zip(task.input_shape, shape, strict=False)]
    repeats, factor = factors[:2] if len(factors) == 3 else (1, 1)
    if (shape[0] * repeats, *(side * factor for side in shape[1:])) != task.input_shape:
        raise UserError(f"task {task.name}: images of {shape} cannot be magnified to the network's {task.input_shape}")
    return repeats, factor


def task(name: str) -> TaskSpec:
    """The task of that name. Raises UserError for an unknown one."""
    if name not in TASKS:
        raise UserError(f"task: '{name}' is unknown; allowed are {', '.join(sorted(TASKS))}")
    return TASKS[name]


def dataset(name: str, **changes: Any) -> DatasetSpec:
    """The dataset of that name; `changes` (shape, counts, classes) are for `synthetic`. Raises UserError."""
    if name not in DATASETS:
        raise UserError(f"dataset: '{name}' is unknown; allowed are {', '.join(sorted(DATASETS))}")
    return replace(DATASETS[name], **changes)
