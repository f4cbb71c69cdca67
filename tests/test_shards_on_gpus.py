"""What shards, cuts or replicates a model, on pretended GPUs: it computes, saves and loads there what it does on CPUs.

torch's own branches for GPUs are walked so: FSDP's, DTensor's, those of pipelines and of distributed checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from own_tasks import bound, data_of, spec
from preloaded import spawned
from relay.process.ranks import Ranks
from relay.spec.tasks import TaskSpec
from relay.task import batches
from sharded import SAMPLES, batch, built

pytestmark = pytest.mark.slow

GPT = spec("gpt-tiny", depth=2, heads=2, global_batch_size=SAMPLES)
STRATEGIES = (
    ("fsdp", 2, GPT, {"offload": True}, "fp16"),
    ("fsdp_tensor_parallel", 4, GPT, {}, "fp64"),
    ("pipeline", 2, GPT, {"micro_batches": 2}, "fp16"),
)


def _as_plain(ranks: Ranks, name: str, its: TaskSpec, options: dict[str, Any], precision: str, folder: Path) -> None:
    task = bound(its, precision, folder / data_of(its, folder).directory_name)
    strategy = built(name, ranks, task, **options)
    given = batches.moved(batch(task, strategy), ranks.device)
    losses = [strategy.train_step(given)]
    strategy.save(folder / name).result()
    ranks.wait_for_files()
    cut = [strategy.train_step(given), strategy.train_step(given)]
    strategy.load(folder / name)
    losses += [strategy.train_step(given), strategy.train_step(given)]
    assert all(map(torch.equal, cut, losses[1:])) or not strategy.replica.reports
    assert {tensor.device for tensor in batches.leaves(strategy.predict(given))} <= {ranks.device}
    told = [each for each in ranks.gather([loss.item() for loss in losses]) if not isnan(each[0])]
    plain = built("cpu", replace(ranks, devices=(torch.device("cpu"),)), task)
    expected = [plain.train_step(task.example(SAMPLES)).item() for _ in losses]
    near = {"rel": 1e-9, "abs": 1e-12} if precision == "fp64" else {"rel": 0.02, "abs": 0.02}
    assert [sum(step) / len(told) for step in zip(*told, strict=True)] == pytest.approx(expected, **near)
    sums = [
        {key: tensor.double().sum().item() for key, tensor in each.whole_model().items()} for each in (strategy, plain)
    ]
    assert sums[0] == pytest.approx(sums[1], **near) or ranks.rank > 0


@pytest.mark.parametrize(("name", "processes", "its", "options", "precision"), STRATEGIES)
def test_what_shards_or_cuts_a_model_trains_it_on_gpus_as_one_process_on_a_cpu_does(
    name: str, processes: int, its: TaskSpec, options: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    data_of(its, tmp_path)
    spawned(_as_plain, processes, name, its, options, precision, tmp_path, gpus=processes)


def test_a_mesh_over_gloo_does_not_bring_nccl() -> None:
    """Before torch 2.11, one of all ranks would on GPUs where gloo alone is known."""
    spawned(_of_all, 2, gpus=2)


def _of_all(ranks: Ranks) -> None:
    assert ranks.mesh(2).get_group() is dist.group.WORLD
