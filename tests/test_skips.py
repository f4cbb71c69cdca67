"""Every strategy asked for where it cannot run is skipped at planning time, with the reason and what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plans import plan, planned, reasons
from relay.config.config import load
from relay.spec.strategy_files import find

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("comparison", "config", "said"),
    [
        ({"strategy": "fsdp"}, {}, "fsdp needs at least 2 devices, has 1; give devices_per_node: 2"),
        (
            {"strategy": "pipeline", "devices_per_node": 2, "options": {"micro_batches": 3}},
            {},
            "a replica's 64 samples are not divisible by micro_batches 3",
        ),
        (
            {"strategy": "tensor_parallel", "devices_per_node": 3},
            {"task": "gpt-tiny"},
            "4 attention heads (block0.query) of gpt-tiny are not divisible by 3 processes",
        ),
        (
            {"strategy": "expert_parallel", "devices_per_node": 8},
            {"task": "gpt-moe-tiny"},
            "divides experts over 8 processes, gpt-moe-tiny has 4",
        ),
        (
            {"strategy": "tensor_parallel", "devices_per_node": 2, "options": {"loss_parallel": True}},
            {"task": "linear-random10"},
            "loss_parallel is for cross entropy of the model's outputs, the loss of linear-random10 is another one",
        ),
        ({"strategy": "cpu", "channels_last": True}, {"task": "gpt-tiny"}, "channels_last is for images"),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(
    comparison: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    (reason,) = reasons(comparison, **config)
    assert said in reason


def test_lossy_options_are_known_by_their_values() -> None:
    ddp = {"strategy": "ddp", "devices_per_node": 2, "options": {"compression": ["none", "fp16"]}}
    told = {run.strategy.options["compression"]: run.strategy.lossy for run in planned(ddp).runs}
    assert told == {"none": {}, "fp16": {"compression": 2e-3}}


@pytest.mark.slow
def test_every_file_of_the_proof_plans_every_strategy() -> None:
    """A strategy that nobody proves would be proven to nobody."""
    import yaml

    asked: set[str] = set()
    for path in sorted((ROOT / "config" / "proof").glob("*.yaml")):
        made = plan(load(yaml.safe_load(path.read_text())), gpus=0)
        asked.update(made.strategies)
        here = {skipped.setting.strategy.name for skipped in made.skipped}
        without = {"single_gpu", "data_parallel", "model_parallel_in_process"}  # GPUs
        assert here <= without | {"zero3_offload_nvme"}, here  # libaio
    assert asked == set(find())
