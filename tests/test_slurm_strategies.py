"""Every strategy through a real Slurm: gate, training, report; those of several nodes on two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import test_deepspeed_slurm
from mini_slurm import MiniSlurm
from relay.spec.run import Run
from relay.spec.strategy_files import find
from results_tree import rows
from slurm_runs import site_file, slurm_snakemake

SHORT = {"device": "cpu", "repeats": 1, "epochs": 0.3, "runtime_minutes": 20, "warmup_steps": 2, "gate": {"steps": 20}}
ACROSS = {"nodes": 2, "launcher": "srun"}
# A network that every strategy can divide.
GPT = {"task": "gpt-deep-tiny", "task_options": {"depth": 4}}
EACH: list[dict[str, Any]] = [
    {"strategy": "single_gpu"},
    {"strategy": "data_parallel", "devices_per_node": 2},
    {"strategy": "mps", "processes_per_device": 2},
    {"strategy": "model_parallel", **ACROSS},
    {"strategy": "model_parallel_in_process", "devices_per_node": 2},
    {"strategy": "pipeline", "options": {"schedule": "1f1b"}, **ACROSS},
    {"strategy": "pipeline_ddp", "devices_per_node": 2, **ACROSS},
    {"strategy": "tensor_parallel", "devices_per_node": 2, "launcher": "torchrun"},
    {"strategy": "fsdp", **ACROSS},
    {"strategy": "fsdp_tensor_parallel", "devices_per_node": 2, **ACROSS},
    {"strategy": "lightning_ddp", **ACROSS},
]
EXPERTS = [{"strategy": "cpu"}, {"strategy": "expert_parallel", **ACROSS}]
# Those of `test_slurm.py`, `test_horovod_slurm.py` and `test_deepspeed_slurm.py`.
ELSEWHERE = {"ddp", "horovod", *test_deepspeed_slurm.STRATEGIES}
ON_GPUS = {"single_gpu", "data_parallel", "model_parallel_in_process"}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "config",
    [SHORT | GPT | {"comparisons": EACH}, SHORT | {"task": "gpt-moe-tiny", "comparisons": EXPERTS}],
    ids=["dense", "experts"],
)
def test_every_strategy_goes_through_gate_and_training(
    cluster: MiniSlurm, tmp_path: Path, config: dict[str, Any]
) -> None:
    """The only whole run of these strategies as Slurm's jobs, and of spot checks there."""
    site = site_file(tmp_path)
    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site, timeout_seconds=1700)
    assert status == 0, printed
    found = {row["strategy"]: row for row in rows(tmp_path / "results")}
    ran = {name for name in found if name not in ON_GPUS}
    assert {name: found[name]["status"] for name in ran} == dict.fromkeys(ran, "done")
    assert {name: found[name]["equivalent"] for name in ran} == dict.fromkeys(ran, "true")
    for name in set(found) & ON_GPUS:
        assert found[name]["status"] == "skipped"
        assert "needs a GPU" in found[name]["reason"]
    summaries = [*(tmp_path / "results/runs").glob("*/summary.json")]
    assert len(summaries) == len(ran)
    for path in summaries:
        assert len(json.loads(path.read_text())["hosts"]) == Run.read(path.with_name("run.json")).shape.nodes


def test_no_strategy_is_left_out() -> None:
    assert {row["strategy"] for row in EACH + EXPERTS} | ELSEWHERE == set(find())
