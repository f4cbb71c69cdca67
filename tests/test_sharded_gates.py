"""Sharded strategies equal the reference, and each rank holds its part; a world size's gates share its processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gate_runs import Gates, planned, shortened
from preloaded import spawned
from relay.equivalence import gate
from relay.process.ranks import Ranks
from relay.spec.run import Run
from sharded import FP64, GPT, MOE

STEPS = 4


def cell(strategy: str, *given: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A gate to run: what `gate_runs.planned` takes; in float64 where nothing else is said."""
    merged = {"strategy": strategy, **FP64}
    for values in given:
        merged |= values
    return merged | ({"options": options} if options else {})


BF16, FP16 = {"precision": "bf16"}, {"precision": "fp16"}
RECOMPUTED, LAST = {"activation_checkpointing": True}, {"channels_last": True}
CELLS = {
    2: [
        cell("fsdp"),
        cell("fsdp", GPT),
        cell("fsdp", GPT, RECOMPUTED),
        cell("fsdp", LAST),
        cell("fsdp", reshard_after_forward=False),
        cell("fsdp", GPT, offload=True),
        cell("fsdp", GPT, BF16),
        cell("fsdp", GPT, BF16, mixed_precision=True),
        cell("fsdp", FP16, mixed_precision=True),
        cell("fsdp", FP16),
        cell("tensor_parallel"),
        cell("tensor_parallel", GPT),
        cell("tensor_parallel", MOE),
        cell("tensor_parallel", GPT, RECOMPUTED),
        cell("tensor_parallel", GPT, BF16),
        cell("tensor_parallel", FP16),
        cell("tensor_parallel", loss_parallel=True),
        cell("tensor_parallel", GPT, loss_parallel=True),
        cell("tensor_parallel", GPT, FP16, loss_parallel=True),
        cell("expert_parallel", MOE),
        cell("expert_parallel", MOE, RECOMPUTED),
        cell("expert_parallel", MOE, BF16),
        cell("expert_parallel", MOE, FP16),
    ],
    4: [
        cell("fsdp"),
        cell("fsdp", GPT),
        cell("fsdp", MOE),
        cell("fsdp", GPT, replicas=2),
        cell("fsdp", GPT, replicas=2, offload=True, reshard_after_forward=False),
        cell("tensor_parallel"),
        cell("tensor_parallel", GPT),
        cell("tensor_parallel", MOE),
        cell("tensor_parallel", loss_parallel=True),  # ten classes over four ranks
        cell("fsdp_tensor_parallel"),
        cell("fsdp_tensor_parallel", GPT),
        cell("fsdp_tensor_parallel", MOE),
        cell("fsdp_tensor_parallel", GPT, RECOMPUTED, BF16),
        cell("fsdp_tensor_parallel", GPT, FP16),
        cell("expert_parallel", MOE),
    ],
}


def named(chosen: dict[str, Any]) -> str:
    """The cell in one word."""
    told = {**chosen, **chosen.get("options", {})}
    return "-".join(
        str(v) if isinstance(v, str) else f"{k}={v}" for k, v in told.items() if k != "options" and v != "fp64"
    )


def _judge(ranks: Ranks, asked: list[tuple[str, Run, Path, Path]], place: Path) -> None:
    for name, run, dataset, trained in asked:
        if ranks.rank == 0:
            print(name, flush=True)
        verdict = gate.judge(run, dataset, trained, ranks, place / "checkpoints")
        if ranks.rank == 0:
            (place / f"{name}.json").write_text(json.dumps(verdict.as_dict()))


def judged(gates: Gates, world_size: int, place: Path) -> dict[str, dict[str, Any]]:
    """The verdicts of all cells of a world size, by their names."""
    asked = []
    for chosen in CELLS[world_size]:
        given = dict(chosen)
        judged_run, plain = planned(given.pop("strategy"), world_size, **given)
        trained = gates.reference(shortened(plain, STEPS))
        asked.append((named(chosen), shortened(judged_run, STEPS), gates.dataset(judged_run), trained))
    spawned(_judge, world_size, asked, place)
    return {name: json.loads((place / f"{name}.json").read_text()) for name, *_ in asked}


@pytest.fixture(scope="module")
def verdicts(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, dict[str, Any]]]:
    """Verdicts of a world size, judged when first asked for."""
    known: dict[int, dict[str, dict[str, Any]]] = {}

    def of(world_size: int) -> dict[str, dict[str, Any]]:
        if world_size not in known:
            known[world_size] = judged(gates, world_size, tmp_path_factory.mktemp(f"world-{world_size}"))
        return known[world_size]

    return of


@pytest.mark.long
@pytest.mark.timeout(1800)  # the first test judges all cells of its world size
@pytest.mark.parametrize(
    ("world_size", "name"), [(size, named(chosen)) for size, cells in CELLS.items() for chosen in cells]
)
def test_it_trains_what_the_reference_trains(verdicts: Callable[..., Any], world_size: int, name: str) -> None:
    verdict = verdicts(world_size)[name]
    assert verdict["problems"] == []
    assert verdict["max_loss_difference"] <= 1e-9
    assert {"algorithm: parameters", "scaled: parameters", "evaluation"} <= {part["name"] for part in verdict["parts"]}


@pytest.mark.long
@pytest.mark.timeout(1800)  # the first test judges all cells of its world size
@pytest.mark.parametrize(
    ("world_size", "name", "share"),
    [
        (2, "fsdp-gpt-tiny", 1 / 2),
        (4, "fsdp-gpt-tiny", 1 / 4),
        (4, "fsdp", 1 / 4),
        (4, "fsdp-gpt-tiny-replicas=2", 1 / 2),
        (2, "tensor_parallel-gpt-tiny", 1 / 2),
        (4, "tensor_parallel-gpt-tiny", 1 / 4),
        (4, "tensor_parallel-gpt-moe-tiny", 1 / 4),
        (4, "fsdp_tensor_parallel-gpt-tiny", 1 / 4),
    ],
)
def test_a_rank_holds_its_part(verdicts: Callable[..., Any], world_size: int, name: str, share: float) -> None:
    shares = verdicts(world_size)[name]["bytes_held_share"]
    assert set(shares) == {"parameters", "gradients", "optimizer"}
    for held in shares.values():
        assert len(held) == world_size
        assert share - 0.02 <= min(held) <= max(held) <= share + 0.10


@pytest.mark.long
@pytest.mark.timeout(1800)  # the first test judges all cells of its world size
def test_a_replica_sees_its_samples(verdicts: Callable[..., Any]) -> None:
    of = {name: verdict["samples_per_rank"] for name, verdict in verdicts(4).items()}
    assert of["fsdp-gpt-tiny"] == of["expert_parallel-gpt-moe-tiny"] == [4] * 4
    assert of["fsdp-gpt-tiny-replicas=2"] == [4] * 4  # hybrid sharding divides samples over all ranks as well
    assert of["tensor_parallel-gpt-tiny"] == [16] * 4
    assert of["fsdp_tensor_parallel-gpt-tiny"] == [8] * 4
