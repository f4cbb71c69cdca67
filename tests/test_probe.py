"""The probe: the largest batch that fits is found, whatever the budget, and the config that says so can be used."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

import preloaded
from living import well
from own_tasks import data_of, spec
from plans import plan, planned
from relay.config.config import load
from relay.probe import job
from relay.probe.job import Search, run_probe
from relay.probe.tries import Tries
from relay.workflow.searches import batch_searches, config_text
from snakemake_calls import snakemake

ANSWER = {"limited_by": "memory", "reason": None, "too_large": 999}


# The search


def searched(limit: int, *, unit: int = 1, first: int = 64, most: int = 4096) -> Search:
    """A search where sizes up to the limit fit."""
    search = Search(unit, first, most)
    search.run(lambda size: size <= limit)
    return search


@pytest.mark.parametrize("unit", [1, 2, 6])
@pytest.mark.parametrize("limit", [1, 2, 5, 12, 63, 64, 65, 100, 777, 4095])
def test_the_search_ends_beside_the_limit(unit: int, limit: int) -> None:
    first, most = 60 // unit * unit, 4096 // unit * unit
    search = searched(limit, unit=unit, first=first, most=most)
    assert all(size % unit == 0 for size in search.sizes)
    assert len(search.sizes) == len(set(search.sizes)) <= 14
    assert search.largest <= limit
    if limit < most:
        assert limit < search.too_large <= search.largest + max(unit, search.largest // 16)
    assert (search.largest == 0) == (limit < unit)


def test_the_search_keeps_what_it_has_when_the_time_is_over() -> None:
    def fits(size: int) -> bool:
        if size > 128:
            raise TimeoutError
        return True

    search = Search(1, 64, 4096)
    search.run(fits)
    assert (search.largest, search.limited_by) == (128, "minutes")


# What is probed


def test_settings_that_differ_in_their_batch_share_a_probe() -> None:
    asked = {"global_batch_size": [16, 64], "momentum": [0.0, 0.9]}  # with momentum, the optimizer keeps more
    made = planned({"strategy": "cpu", **asked}, task="lenet-cifar10")
    found = batch_searches(made)
    assert [*found] == [made.settings[0].id, made.settings[1].id]
    assert len(made.settings) == 4


def test_the_written_config_is_the_given_one_with_the_batches_found() -> None:
    given = [
        {"strategy": "cpu", "precision": ["fp32", "bf16"], "cpus_per_task": 2, "loader": "dataloader"},
        {"strategy": "cpu", "momentum": 0.5, "learning_rate_schedule": "cosine", "learning_rate_warmup_epochs": 2.0},
        {"strategy": "ddp", "devices_per_node": [2, 3], "options": {"accumulation": 2}, "segment": {"epochs": 2.0}},
        {"strategy": "mps", "processes_per_device": 2, "repeats": 2},
        {"strategy": "data_parallel", "devices_per_node": 2},
    ]
    made = planned(*given, global_batch_size=48, epochs=10.0)
    answers = {name: ANSWER | {"batch_per_device": 6 + 6 * i} for i, name in enumerate(batch_searches(made))}
    text = config_text(made, answers, "results/probed.yaml")
    assert "--configfile results/probed.yaml" in text
    again = plan(load(yaml.safe_load(text)), gpus=0)
    assert [skipped.reasons for skipped in again.skipped] == [skipped.reasons for skipped in made.skipped]
    batches = [answers[name]["batch_per_device"] * probe.shape.devices for name, probe in batch_searches(made).items()]
    assert [planned_.setting.batch.global_batch_size for planned_ in again.settings] == batches
    alike = ("strategy", "computation", "shape", "feeding", "optimization")
    for before, after in zip(made.settings, again.settings, strict=True):
        assert all(getattr(before.setting, name) == getattr(after.setting, name) for name in alike)
        assert (before.repeats, before.segment) == (after.repeats, after.segment)


# Real probes, on CPUs


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with the digits."""
    folder = tmp_path_factory.mktemp("results")
    data_of(spec("lenet-digits"), folder / "datasets")
    return folder


FULL = """
import torch.distributed as dist
from relay import strategies
from relay.strategies.base import Requirements
from relay.task import batches

Base = strategies.load("fsdp")


class Full(Base):
    requirements = Requirements(least_devices=2)

    def build(self):
        super().build(True, False, False, 1)

    def train_step(self, batch):
        if self.ranks.rank == 1 and batches.count(batch) > 4:
            raise dist.DistBackendError("ncclUnhandledCudaError: … Last error: Failed to CUDA calloc 6291456 bytes")
        return super().train_step(batch)
"""


@pytest.mark.slow
def test_what_a_full_gpu_causes_is_a_size_that_does_not_fit(results: Path, tmp_path: Path, monkeypatch) -> None:
    """Neither a fault of the strategy, nor processes that were killed, which would be tried again."""
    monkeypatch.setattr(job, "Tries", partial(Tries, start=preloaded.start))
    (tmp_path / "full.py").write_text(FULL)
    made = planned({"strategy": "full", "devices_per_node": 2}, strategy_folders=[str(tmp_path)])
    (asked,) = batch_searches(made).values()
    budget = {"minutes": 3, "memory_fraction": 1.0, "node_memory_mb": 100_000, "first": 4, "most": 5}
    replace(asked, limits=replace(asked.limits, **budget)).write(results / "probe" / "run.json")
    assert run_probe(results / "probe" / "run.json", results, results / "probe" / "found.json") == 0
    found = json.loads((results / "probe" / "found.json").read_text())
    assert (found["batch_per_device"], found["limited_by"]) == (4, "memory")
    assert found["tried"][0]["budget_bytes"] == 50_000 * 2**20  # half of the node's memory each
    assert [one["peak_memory_bytes"] is None for one in found["tried"]] == [False, True]


@pytest.mark.long
def test_the_workflow_probes_and_writes_the_config(results: Path, tmp_path: Path) -> None:
    """The only whole run of a probe."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "datasets").symlink_to(results / "datasets")
    config = {"device": "cpu", "probe": {"most": 128}, "comparisons": [{"strategy": "cpu"}, {"strategy": "single_gpu"}]}
    printed = well(snakemake(tmp_path, config, "probe"))
    assert "128 samples per device, the largest batch to try" in printed
    made = plan(load(yaml.safe_load((tmp_path / "results" / "probed.yaml").read_text())), gpus=0)
    assert [planned_.setting.batch.global_batch_size for planned_ in made.settings] == [128]
