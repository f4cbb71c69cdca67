"""Sharded strategies equal the reference in the precisions and with the options of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gate_parts import judged, named
from gate_runs import Gates
from sharded import FP64, GPT, MOE


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
        cell("fsdp", LAST),
        cell("fsdp", GPT, offload=True),
        cell("fsdp", GPT, RECOMPUTED, BF16, mixed_precision=True),
        cell("fsdp", FP16, mixed_precision=True),
        cell("tensor_parallel", GPT, RECOMPUTED, BF16),
        cell("tensor_parallel", GPT, FP16, loss_parallel=True),
        cell("expert_parallel", MOE, RECOMPUTED, BF16),
        cell("expert_parallel", MOE, FP16),
    ],
    4: [
        cell("fsdp", GPT, replicas=2, offload=True, reshard_after_forward=False),
        cell("tensor_parallel", loss_parallel=True),  # ten classes over four ranks
        cell("fsdp_tensor_parallel", MOE),
        cell("fsdp_tensor_parallel", GPT, FP16),
    ],
}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world_size", CELLS)
def test_it_trains_what_the_reference_trains(gates: Gates, world_size: int, tmp_path: Path) -> None:
    """Only this puts sharding strategies with these options and precisions through a gate."""
    verdicts = judged(gates, CELLS[world_size], world_size, tmp_path)
    assert {name: verdict["problems"] for name, verdict in verdicts.items()} == {
        named(each): [] for each in CELLS[world_size]
    }
