"""What can be trained: every dataset and every task, as plain data that the planner reads without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from relay.base.errors import UserError


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A dataset as the dataset stage prepares it.

    `shape` is one sample's: (channels, height, width) of uint8 images, (features,) of float32 vectors, or (length,) of
    a text's bytes, whose targets are the bytes that come next. `classes` is None for regression. `version` changes
    whenever the prepared arrays would.
    """

    name: str
    version: str
    kind: Literal["images", "vectors", "text"]
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

    @property
    def unit(self) -> str:
        """What its speed counts: images, tokens of a text, or samples."""
        return {"images": "images", "text": "tokens", "vectors": "samples"}[self.kind]

    @property
    def units_per_sample(self) -> int:
        """Tokens in a sample of text; else 1."""
        return self.shape[0] if self.kind == "text" else 1


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A network, a dataset and an optimiser: what is trained.

    `learning_rate` belongs to `global_batch_size`; a run with another batch may scale it (`learning_rate_scaling`).
    `schedule` multiplies it: {"kind": "constant"}, {"kind": "step", "every_epochs": n, "gamma": g} or
    {"kind": "cosine"}.
    `shrunken` holds network options for the equivalence gate where the whole network would take too long in float64.
    `layers` counts those of the network that have parameters (a pipeline has at most so many stages), `experts` those
    of each of its mixtures of experts (0 for a network without). `matrices`: whether linear layers have a part of the
    parameters that is worth splitting.
    """

    name: str
    network: str
    dataset: str
    input_shape: tuple[int, ...]
    layers: int
    experts: int = 0
    matrices: bool = True
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
        # The project's own text, 262,145 bytes, in windows for smaller and larger networks.
        *(
            DatasetSpec(
                name=name,
                version="1",
                kind="text",
                shape=(length,),
                classes=256,
                train_count=7 * 2**15 // length,
                test_count=2**15 // length,
            )
            for name, length in (("relay-text", 64), ("relay-text-256", 256))
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
    "layers": 5,
    "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9},
}
_RESNET: dict[str, Any] = {
    "network": "resnet18",
    "dataset": "cifar10",
    "input_shape": (3, 32, 32),
    "layers": 11,
    "matrices": False,
    "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9, "weight_decay": 5e-4},
    "learning_rate": 0.1,
    "global_batch_size": 128,
    "schedule": {"kind": "cosine"},
    "shrunken": {"width": 4},
}


def _gpt(name: str, width: int, depth: int, heads: int, *, experts: int = 0, **values: Any) -> TaskSpec:
    """A GPT on the bytes of the project's text; the smallest ones need no shrinking and take shorter windows."""
    tiny = width <= 64
    return TaskSpec(
        name=name,
        network="gpt",
        dataset="relay-text" if tiny else "relay-text-256",
        input_shape=(64,) if tiny else (256,),
        layers=depth + 3,  # the embedding, the last norm and the head
        experts=experts,
        optimizer="adamw",
        optimizer_options={"weight_decay": 0.1},
        network_options={"width": width, "depth": depth, "heads": heads} | ({"experts": experts} if experts else {}),
        shrunken={} if tiny else {"width": 8 * heads},  # as many layers and heads: it is split in the same way
        **values,
    )


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
            layers=5,
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
            layers=4,
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
            layers=4,
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
            layers=1,
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
            layers=1,
            loss="mean_squared_error",
            optimizer="sgd",
            learning_rate=0.001,
            global_batch_size=32,
        ),
        # 0.24, 0.64 and 0.12 M parameters, for tests.
        _gpt("gpt-tiny", 64, 4, 4, learning_rate=1e-3, global_batch_size=32),
        _gpt("gpt-moe-tiny", 64, 4, 4, experts=4, learning_rate=1e-3, global_batch_size=32),
        _gpt("gpt-deep-tiny", 32, 8, 4, learning_rate=1e-3, global_batch_size=32),
        # 11 M; 86 M, GPT-2's smallest shape (its 124 M are due to 50,257 tokens in place of 256 bytes); 1.0 G; and
        # 4.4 G, which with AdamW in float32 (16 bytes for each) fill a GPU of 80 GB. Learning rates as GPT-3's.
        _gpt("gpt-small", 384, 6, 8, learning_rate=1e-3, global_batch_size=64),
        _gpt("gpt-86m", 768, 12, 12, learning_rate=6e-4, global_batch_size=64),
        _gpt("gpt-1b", 2048, 20, 16, learning_rate=2e-4, global_batch_size=32),
        _gpt("gpt-large", 4096, 22, 32, learning_rate=1.2e-4, global_batch_size=8),
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
