"""What can be trained: every task, as plain data that the planner reads without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from relay.base.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A network, a dataset and an optimiser: what is trained.

    `learning_rate` belongs to `global_batch_size`; a run with another batch may scale it (`learning_rate_scaling`).
    `schedule` multiplies it: {"kind": "constant"}, {"kind": "step", "every_epochs": n, "gamma": g} or
    {"kind": "cosine"}; each may have "warmup_epochs", after which it begins. A comparison may replace `schedule` and
    the members `momentum` and `weight_decay` of `optimizer_options` (`relay.planning.optimization`).
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
            name="autoencoder-mnist",
            network="autoencoder",
            dataset="mnist-pixels",
            input_shape=(784,),
            layers=4,
            loss="mean_squared_error",
            optimizer="adam",
            learning_rate=0.001,
            global_batch_size=128,
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
        TaskSpec(name="resnet18-cifar10", dataset="cifar10", network_options={"norm": "batch"}, **_RESNET),
        TaskSpec(name="resnet18-group-cifar10", dataset="cifar10", network_options={"norm": "group"}, **_RESNET),
        # As deep, with an eighth of the channels, and without a download: for trying things out.
        TaskSpec(name="resnet18-tiny", dataset="synthetic", network_options={"norm": "batch", "width": 8}, **_RESNET),
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


def task(name: str) -> TaskSpec:
    """The task of that name. Raises UserError for an unknown one."""
    if name not in TASKS:
        raise UserError(f"task: '{name}' is unknown; allowed are {', '.join(sorted(TASKS))}")
    return TASKS[name]
