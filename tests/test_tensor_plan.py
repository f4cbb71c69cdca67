"""How matrices are split over tensor-parallel ranks, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

from relay.base.errors import UserError
from relay.planning import config
from relay.planning.planner import plan
from relay.process.ranks import Ranks
from relay.strategies._tensor_plan import tensor_plan
from relay.task.network import Computation, Network
from sharded import built, of_task


def network(name: str) -> Network:
    """The task's network."""
    return of_task(name).model()


def styles(name: str, ranks: int, **keys: Any) -> dict[str, str]:
    """The plan in short: "column" and "row" where outputs stay split, "…, whole" where they do not."""
    told = {}
    for module, style in tensor_plan(network(name), ranks, **keys).items():
        kind = {"ColwiseParallel": "column", "RowwiseParallel": "row"}.get(type(style).__name__, type(style).__name__)
        inputs, outputs = getattr(style, "input_layouts", ()), getattr(style, "output_layouts", ())
        alone = bool(inputs) and all(layout[0].is_replicate() for layout in (inputs, outputs))
        told[module] = kind + ", whole" * alone
    return told


def test_matrices_in_a_row_are_paired() -> None:
    assert styles("lenet-digits", 2) == {"fc1": "column", "fc2": "row", "fc3": "row, whole"}


def test_a_width_that_ranks_do_not_divide_is_put_together_again() -> None:
    """LeNet's 120 columns over seven ranks: as a pair, the next matrix would see shards of two widths."""
    assert styles("lenet-digits", 7) == {"fc1": "row, whole", "fc2": "column", "fc3": "row"}


def test_dropout_is_on_what_is_whole() -> None:
    assert styles("princeton-mnist", 2) == {"fc1": "row, whole", "fc2": "row, whole"}


def test_the_last_layers_classes_can_stay_split() -> None:
    plan = tensor_plan(network("lenet-digits"), 2, classes_sharded=True)
    assert list(plan) == ["fc3", "fc1", "fc2"]
    assert plan["fc3"].output_layouts[0].is_shard()
    assert not plan["fc3"].use_local_output


def test_layers_state_how_they_are_split() -> None:
    told = styles("gpt-tiny", 4)
    block = {"query": "column", "key": "column", "value": "column", "out": "row", "up": "column", "down": "row"}
    assert {name: told[f"block3.{name}"] for name in block} == block
    assert told["embed.token"] == told["embed.position"] == told["head"] == "column, whole"
    assert len(told) == 2 + 4 * len(block) + 1
    told = styles("gpt-moe-tiny", 4)
    assert told["block0.moe"] == "SplitExperts"
    assert "block0.up" not in told


# What is refused


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """This process as the only rank."""
    yield Ranks.join("cpu", "gloo")
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [3, 8])
def test_heads_that_ranks_do_not_divide_are_named(ranks: int) -> None:
    with pytest.raises(UserError, match=rf"^tensor parallelism: {ranks} processes do not divide 4 attention heads"):
        tensor_plan(network("gpt-tiny"), ranks)


def test_a_last_layer_that_is_no_matrix_has_no_split_classes() -> None:
    layers = Network({"fc": nn.Linear(4, 4), "act": nn.ReLU()}, Computation())
    with pytest.raises(UserError, match=r"^loss_parallel: True is not allowed; the network's last layer, act, is no"):
        tensor_plan(layers, 2, classes_sharded=True)


def test_a_network_without_matrices_is_named(alone: Ranks) -> None:
    with pytest.raises(UserError, match=r"^tensor parallelism: only 0\.0% of the network's parameters"):
        built("tensor_parallel", alone, of_task("resnet18-cifar10"))


@pytest.mark.parametrize(
    ("comparison", "reason"),
    [
        (
            {"strategy": "tensor_parallel", "devices_per_node": 3},
            "4 attention heads of gpt-tiny are not",
        ),
        ({"strategy": "fsdp_tensor_parallel", "devices_per_node": 6, "options": {"tensor": 4}}, "tensor 4 does not"),
        ({"strategy": "fsdp_tensor_parallel", "devices_per_node": 2}, "needs at least 4 devices, has 2"),
        ({"strategy": "expert_parallel", "devices_per_node": 2}, "gpt-tiny has none"),
        (
            {"strategy": "fsdp", "devices_per_node": 2, "options": {"mixed_precision": True}},
            "mixed_precision is for precision bf16 or fp16, precision is fp32",
        ),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(comparison: dict[str, Any], reason: str) -> None:
    asked = {"device": "cpu", "task": "gpt-tiny", "comparisons": [comparison]}
    made = plan(config.load(asked), gpus=0)
    assert not made.runs
    assert [reason in skip for skip in map(str, made.skipped)] == [True]
