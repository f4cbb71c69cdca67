"""Every strategy asked for where it cannot run is skipped at planning time, with the reason and what would do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plans import planned
from relay.base.errors import UserError
from relay.planning.config import load
from relay.planning.planner import plan
from relay.spec.requirements import BUILT_IN, find, read
from stacks import of_stack, provide

ROOT = Path(__file__).resolve().parents[1]


def reason(comparison: dict[str, Any], gpus: int = 0, **config: Any) -> str:
    """Why the only setting is skipped."""
    made = planned(comparison, gpus=gpus, **config)
    assert not made.runs
    (skipped,) = made.skipped
    return "; ".join(skipped.reasons)


@pytest.mark.parametrize(
    ("comparison", "config", "said"),
    [
        ({"strategy": "single_gpu"}, {}, "single_gpu needs a GPU, device is cpu; use cpu instead"),
        (
            {"strategy": "data_parallel", "devices_per_node": 2},
            {},
            "data_parallel needs a GPU, device is cpu; use ddp instead",
        ),
        ({"strategy": "mps"}, {}, "mps is for several processes on a device; give processes_per_device, such as 2"),
        ({"strategy": "fsdp"}, {}, "fsdp needs at least 2 devices, has 1; give devices_per_node: 2"),
        (
            {"strategy": "pipeline", "devices_per_node": 8},
            {},
            "pipeline has 8 stages, the model of lenet-digits can be cut into 5",
        ),
        (
            {"strategy": "pipeline", "devices_per_node": 4, "options": {"schedule": "interleaved_1f1b"}},
            {"task": "gpt-tiny"},
            "pipeline has 8 stages (2 for each process), the model of gpt-tiny can be cut into 7",
        ),
        (
            {"strategy": "pipeline", "devices_per_node": 2, "options": {"micro_batches": 3}},
            {},
            "a replica's 64 samples are not divisible by micro_batches 3",
        ),
        (
            {"strategy": "pipeline_ddp", "devices_per_node": 4, "options": {"stages": 3}},
            {},
            "stages 3 does not divide the 4 processes",
        ),
        (
            {"strategy": "fsdp_tensor_parallel", "devices_per_node": 4, "options": {"tensor": 3}},
            {},
            "tensor 3 does not divide the 4 processes",
        ),
        (
            {"strategy": "tensor_parallel", "devices_per_node": 3},
            {"task": "gpt-tiny"},
            "4 attention heads (block0.query) of gpt-tiny are not divisible by 3 processes",
        ),
        ({"strategy": "expert_parallel", "devices_per_node": 2}, {}, "expert_parallel divides experts over 2"),
        (
            {"strategy": "expert_parallel", "devices_per_node": 8},
            {"task": "gpt-moe-tiny"},
            "divides experts over 8 processes, gpt-moe-tiny has 4",
        ),
        (
            {"strategy": "ddp", "devices_per_node": 2, "options": {"accumulation": 5}},
            {},
            "a replica's 32 samples are not divisible by accumulation 5",
        ),
        (
            {"strategy": "fsdp", "devices_per_node": 2, "options": {"mixed_precision": True}},
            {},
            "mixed_precision is for precision bf16 or fp16, precision is fp32",
        ),
        (
            {"strategy": "fsdp", "devices_per_node": 4, "options": {"replicas": 3}},
            {},
            "replicas 3 does not divide the 4 processes into groups of two or more",
        ),
        (
            {"strategy": "fsdp_tensor_parallel", "devices_per_node": 4, "options": {"tensor": 4}},
            {},
            "tensor 4 leaves one replica of 4 processes",
        ),
        (
            {"strategy": "tensor_parallel", "devices_per_node": 2},
            {"task": "resnet18-cifar10"},
            "tensor_parallel divides matrices, which have 0.0% of the parameters of resnet18-cifar10; at least 10%",
        ),
        (
            {"strategy": "tensor_parallel", "devices_per_node": 2, "options": {"loss_parallel": True}},
            {"task": "linear-random10"},
            "loss_parallel is for cross entropy of the model's outputs, the loss of linear-random10 is another one",
        ),
        ({"strategy": "cpu", "precision": "tf32"}, {}, "precision tf32 is a mode of GPUs, device is cpu"),
        ({"strategy": "cpu", "channels_last": True}, {"task": "gpt-tiny"}, "channels_last is for images"),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(
    comparison: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    assert said in reason(comparison, **config)


def test_replicas_of_several_processes_share_the_batch_by_replica() -> None:
    """Four processes as two pipelines: a batch of 62 has two halves, and 4 does not divide it."""
    comparison = {
        "strategy": "pipeline_ddp",
        "devices_per_node": 4,
        "options": {"schedule": "gpipe", "micro_batches": 1},
    }
    assert len(planned(comparison, global_batch_size=62).runs) == 1
    assert "not divisible by 2 replicas" in reason(comparison, global_batch_size=63)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"schedule": "fastest"}, "comparisons[0].options.schedule: 'fastest' is not allowed; allowed: gpipe, 1f1b"),
        ({"micro_batches": 0}, "comparisons[0].options.micro_batches: 0 is not allowed; allowed: a whole number of at"),
        ({"micro_batches": True}, "comparisons[0].options.micro_batches: true is not allowed"),
    ],
)
def test_an_option_that_no_machine_could_take_is_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        planned({"strategy": "pipeline", "devices_per_node": 2, "options": options})
    assert line in str(caught.value)


def test_lossy_options_are_known_by_their_values() -> None:
    ddp = {"strategy": "ddp", "devices_per_node": 2, "options": {"compression": ["none", "fp16"]}}
    told = {run.strategy.options["compression"]: run.strategy.lossy for run in planned(ddp).runs}
    assert told == {"none": {}, "fp16": {"compression": 2e-3}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "stack",
    [  # that of another library may have to be built
        pytest.param(stack, marks=[] if stack == "torch" else pytest.mark.slow)
        for stack in sorted({read(path).stack for path in find().values()})
    ],
)
def test_the_planner_reads_of_every_strategy_what_its_class_states(stack: str) -> None:
    """Requirements are read from the text; the class could say something else."""
    python, names = str(provide(stack)), sorted(of_stack(stack))
    code = (
        "from relay import strategies; import sys; [print(repr(strategies.load(n).requirements)) for n in sys.argv[1:]]"
    )
    done = subprocess.run(
        [python, "-c", code, *names],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
    )
    assert done.stdout.splitlines() == [repr(read(BUILT_IN / f"{name}.py")) for name in names]


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
