"""The equivalence gate: right strategies pass, each planted wrong one is caught, by the part that is made for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gate_parts import Asked, Planted, verdicts
from gate_runs import FEW_STEPS, Gates, planned
from relay.equivalence.division import Shares, undivided
from relay.equivalence.job import run_reference
from relay.launch.launcher import launch
from relay.spec.identity import source_digest, strategy_sources
from relay.spec.strategy_files import find
from relay.strategies.base import Replica
from relay.task.modes import Work


def test_each_precision_has_a_reference_of_its_own() -> None:
    assert planned("cpu")[1].id != planned("cpu", precision="fp64")[1].id


def test_attention_counts_alike_however_it_is_computed() -> None:
    """A plain training may compute it by matrix products, and a strategy by the CPU's own kernel."""
    (forward, total), (of_kernel, its_total) = map(_attention, (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION))
    assert forward == of_kernel > 0
    assert total == pytest.approx(its_total, rel=0.2)  # the kernel computes the scores again


def _attention(kernel: SDPBackend) -> tuple[int, int]:
    query, work = torch.randn(2, 4, 64, 8, requires_grad=True), Work()
    with sdpa_kernel(kernel), work.counting():
        scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    total, forward = work.taken()
    return forward, total


@pytest.mark.slow
def test_a_right_strategy_passes(gates: Gates) -> None:
    verdict = gates.verdict("ddp", 2, start=launch)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert {part["name"] for part in verdict["parts"]} == frozenset().union(*GROUPS.values())
    assert all(part["passed"] and part["figure"] <= part["limit"] for part in verdict["parts"])
    assert verdict["max_loss_difference"] <= 1e-9
    assert "100 steps" in verdict["parts"][0]["what"]
    assert verdict["samples_per_rank"] == [8.0, 8.0]
    (own,) = verdict["own_batches"]
    assert (own["global_batch_size"], own["learning_rate"], own["problems"]) == (64, 0.02, [])
    assert own["samples_per_rank"] == [32.0, 32.0]
    assert {part["name"] for part in own["parts"]} == TRIALS
    assert "2 steps" in own["parts"][0]["what"]
    assert verdict["strategy_source"] == source_digest(strategy_sources(find()["ddp"]))
    ring = 62_006 * 8  # LeNet's parameters in float64: what a ring's all-reduce of two sends from each rank
    assert all(0.95 * ring < count < 1.1 * ring for count in verdict["bytes_sent_per_step"])


# Wrong strategies are caught

FAULTS = yaml.safe_load(Path(__file__).with_name("gate_faults.yaml").read_text())
GROUPS = {name: frozenset(parts) for name, parts in FAULTS["groups"].items()}
TRIALS = GROUPS["algorithm"] | GROUPS["smooth twin"] | GROUPS["own losses"]  # of a run's own batch


def planted_in(kind: str) -> list[Planted]:
    """The faults of `gate_faults.yaml`, of whole gates or of what is seen between steps."""
    found = []
    for row in FAULTS[kind]:
        named = {key: [GROUPS.get(name, {name}) for name in row.pop(key, ())] for key in ("fails", "passes")}
        parts = {key: frozenset[str]().union(*groups) for key, groups in named.items()}
        found.append(Planted(says=tuple(row.pop("says", ())), **parts, **row))
    return found


WRONG, WRONG_BETWEEN = planted_in("whole gates"), planted_in("between steps")


@pytest.mark.slow
@pytest.mark.parametrize("planted", WRONG, ids=str)
def test_a_wrong_strategy_is_caught(gates: Gates, planted: Planted, capfd: pytest.CaptureFixture[str]) -> None:
    asked = planted.asked
    verdict = gates.verdict(asked.strategy, steps=FEW_STEPS, options=asked.options)
    assert verdict["equivalent"] is False
    planted.caught(verdict, exactly=False)
    lines = [line for line in capfd.readouterr().out.splitlines() if "NOT equivalent" in line]
    assert not planted.where or f"; {verdict['where']}" in lines[-1]


@pytest.mark.slow
def test_a_reference_without_its_dataset_is_not_tried_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, asked = planned("cpu")
    asked.write(tmp_path / "reference.json")
    output = tmp_path / "reference.pt"
    assert run_reference(tmp_path / "reference.json", tmp_path, output, attempt=1) == 1
    assert not output.exists()
    first = capfd.readouterr().err
    assert "Traceback" not in first
    (told,) = [line for line in first.splitlines() if line.startswith("reference failed: ")]
    assert str(tmp_path / "datasets" / "digits") in told
    assert run_reference(tmp_path / "reference.json", tmp_path, output, attempt=2) == 1
    assert capfd.readouterr().err == told.replace("failed:", "failed before, not tried again:") + "\n"


# What it sees between steps, of modules and of who does the work


RIGHT = [
    Asked("ddp", options={"compression": "powersgd"}),
    Asked("pipeline", axes={"precision": "fp16"}),
    Asked("right_zero_redundancy"),
    Asked("right_own_loop"),
    Asked("ddp", "resnet18-cifar10", options={"accumulation": 2}),
]


@pytest.fixture(scope="module")
def found(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Asked], dict[str, Any]]:
    """The verdict of each strategy asked for."""
    return verdicts(gates, tmp_path_factory.mktemp("judged"), [*(planted.asked for planted in WRONG_BETWEEN), *RIGHT])


@pytest.mark.slow
@pytest.mark.parametrize("planted", WRONG_BETWEEN, ids=str)
def test_a_fault_is_caught_by_its_part(found: Callable[[Asked], dict[str, Any]], planted: Planted) -> None:
    planted.caught(found(planted.asked), exactly=True)


@pytest.mark.slow
@pytest.mark.parametrize("asked", RIGHT, ids=str)
def test_a_right_strategy_raises_no_alarm(found: Callable[[Asked], dict[str, Any]], asked: Asked) -> None:
    verdict = found(asked)
    assert verdict["problems"] == []
    exact = [part for part in verdict["parts"] if part["limit"] == 1e-9]
    assert len(exact) >= 7
    assert all(part["figure"] <= 1e-9 / 1000 for part in exact), exact
    if asked.axes.get("precision") is None and not verdict.get("lossy"):
        (outputs,) = (p for p in verdict["parts"] if p["name"] == "own precision: outputs")
        assert outputs["figure"] <= outputs["limit"] / 10
    computed = verdict["computed_share"]
    assert len(computed) == 2
    if asked.strategy in ("ddp", "fsdp"):
        assert computed == [0.5, 0.5]


def test_a_process_that_keeps_the_optimizer_for_the_others_is_no_idle_one() -> None:
    """As a parameter server's; whoever keeps no more of it than the others has to compute."""
    replicas = [Replica(0, 2, reports=False), Replica(0, 2), Replica(1, 2)]
    steps = [[Shares(0, 0), Shares(0.5, 0.5), Shares(0.5, 0.5)]]
    told = "rank 0 computes no samples: it keeps the optimizer's state for the others"
    assert undivided(replicas, steps, [1, 0, 0]) == ([], [told])
    (problem,), _ = undivided(replicas, steps, [1, 1, 1])
    assert problem.endswith("rank 0 computes nothing; ranks 0, 1 should share a replica's work")
