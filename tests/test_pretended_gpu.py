"""All that trains, on pretended GPUs: no tensor lies on the wrong device, and each GPU is asked as a GPU is."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import preloaded
import pretended_gpu
from chain_runs import DIGITS, DROPOUT, LIKE_CIFAR, Bench
from gate_runs import Gates
from own_tasks import bound, data_of, spec
from plans import plan
from preloaded import spawned
from relay import strategies
from relay.base.files import read_json
from relay.chain.generators import generators, restore
from relay.config.config import load
from relay.probe import job, tries
from relay.process.generators import seed_generators
from relay.process.ranks import Ranks
from relay.run_folder import run_chain
from relay.spec.run import SearchLimits
from relay.task import batches
from relay.task.data import Mapped, Resident, Streamed
from relay.task.split import Chosen
from relay.training.summary import kept_losses
from relay.training.timing import Stopwatch
from relay.workflow.searches import batch_searches
from spot_checked import verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NORMALISED = spec("resnet18-tiny", global_batch_size=32, width=4, train_count=301, test_count=77)
TRAINED: dict[str, dict[str, Any]] = {
    "dropout": {"its": DROPOUT},
    "batch norm": {"its": NORMALISED},
    "in fp16": {"its": DIGITS, "precision": "fp16"},
}
SHORT = {"total_steps": 8, "evaluate_every_steps": 4, "device": "cuda"}
IN_PROCESS = {"devices_per_node": 2, "devices_per_process": 2}
RANKS = {"backend": "gloo", "launcher": "torchrun"}
ON_TWO: dict[str, dict[str, Any]] = {
    "data_parallel": IN_PROCESS,
    "model_parallel_in_process": IN_PROCESS,
    "ddp": {"devices_per_node": 2, **RANKS},
}


# Gates


def test_the_gate_of_a_process_with_two_gpus_passes_with_dropout(gates: Gates) -> None:
    found = gates.verdict("data_parallel", 2, task="utsa-mnist", device="cuda", steps=2, global_batch_size=16)
    assert found["equivalent"], found["problems"]


# Runs


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param("single_gpu", "in fp16", marks=pytest.mark.long),
        pytest.param("data_parallel", "batch norm", marks=pytest.mark.long),
        pytest.param("model_parallel_in_process", "dropout", marks=pytest.mark.long),
        ("ddp", "dropout"),
    ],
)
def test_a_run_goes_on_bit_for_bit_and_passes_its_spot_check(bench: Bench, strategy: str, name: str) -> None:
    """Only the long cases scale losses on a GPU, or train on several GPUs of one process."""
    values: dict[str, Any] = {"strategy": strategy, **ON_TWO.get(strategy, {}), **SHORT, **TRAINED[name]}
    uncut, cut = (bench.chain(name, **values) for name in ("uncut", "cut"))
    uncut.train(forked=True)
    cut.measured(dict(run_chain.measured(uncut.work)))  # where stages are cut, and so which GPU drops which units
    for attempt, (first, last) in enumerate([(0, 4), (4, 8)], 1):
        assert (ended := cut.forked(first, last, attempt=attempt)).status == 0, ended.errors
    losses = kept_losses(cut.work)
    assert len(losses) == SHORT["total_steps"]
    assert losses == kept_losses(uncut.work)
    (found,) = verdict(cut)
    assert found["status"] == "passed", found


# The probe


def test_the_probe_finds_the_largest_batch(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is refused by the device, as CUDA does."""
    monkeypatch.setattr(job, "Tries", partial(tries.Tries, start=preloaded.start))
    made = plan(load({"device": "cuda", "task": "lenet-digits", "comparisons": [{"strategy": "single_gpu"}]}), gpus=1)
    ((name, asked),) = batch_searches(made).items()
    gates.dataset(asked)
    declared, output = gates.results / "probe" / f"{name}.run.json", gates.results / "probe" / f"{name}.json"
    limits = SearchLimits(unit=1, first=4, most=4, minutes=3, memory_fraction=1.0)
    replace(asked, limits=limits).write(declared)
    assert job.run_probe(declared, gates.results, output) == 0
    whole = read_json(output)
    assert whole["batch_per_device"] == 4
    peak = whole["tried"][0]["peak_memory_bytes"]
    # Less than the task itself needs: refused in a backward pass, memory ends a pretended GPU's process.
    part = peak / 100 / pretended_gpu.TOTAL_MEMORY
    replace(asked, limits=replace(limits, memory_fraction=part)).write(declared)
    assert job.run_probe(declared, gates.results, output) == 0
    less = read_json(output)
    assert (less["limited_by"], less["too_large"]) == ("memory", 1)


# What a device computes and draws


def test_every_loader_gives_a_gpu_the_bits_of_the_cpu(prepared: Path) -> None:
    """A division by 255 is a product with its reciprocal in CUDA, and another number for 126 of 256 values."""
    spawned(_fed, 1, prepared, gpus=1)


def _fed(ranks: Ranks, prepared: Path) -> None:
    values = torch.arange(256.0)
    assert int((values.to(ranks.device).div(255).cpu() != values / 255).sum()) == 126
    folder, which = prepared / data_of(LIKE_CIFAR, prepared).directory_name, Chosen(torch.arange(64))
    for precision in ("fp32", "fp64"):
        split = bound(LIKE_CIFAR, precision, folder).split("train")
        expected, _ = Mapped(split, torch.device("cpu")).fetch(which)
        for feeding in (kind(split, ranks.device) for kind in (Mapped, Resident, partial(Streamed, workers=0))):
            ((images, _),) = feeding.batches(iter([which]))
            assert images.device == ranks.device
            assert torch.equal(images.cpu(), expected)


def test_nothing_that_a_strategy_builds_moves_the_generator_of_a_gpu(prepared: Path) -> None:
    spawned(_drawn, 2, prepared / data_of(DROPOUT, prepared).directory_name, gpus=2)


def _drawn(ranks: Ranks, data: Path) -> None:
    """PowerSGD seeds whatever it finds, alike on all ranks, from the step on in which it begins."""
    seed_generators(ranks.rank, ranks.devices)
    before = [*generators()["cuda"]]
    strategy = strategies.load("ddp")(bound(DROPOUT, "fp32", data), ranks, 8, {"compression": "powersgd"})
    assert all(map(torch.equal, before, generators()["cuda"]))
    batch = batches.moved((torch.rand(4, 1, 28, 28), torch.arange(4)), ranks.device)
    for _ in range(4):
        strategy.train_step(batch)
    one, other = ranks.gather(torch.cuda.get_rng_state(ranks.device))
    assert not torch.equal(one, other)


def test_the_gpus_of_a_process_draw_otherwise_and_go_on_where_they_were() -> None:
    spawned(_goes_on, 1, gpus=2)


def _goes_on(ranks: Ranks) -> None:
    def draws() -> list[list[float]]:
        return [torch.rand(8, device=device).tolist() for device in ranks.devices]

    seed_generators(7, ranks.devices)
    one, other = draws()
    assert one != other
    state = generators()
    expected = draws()
    restore(state)
    assert draws() == expected
    seed_generators(7, ranks.devices)
    assert draws() == [one, other]


def test_the_gate_sees_gpus_of_a_process_that_draw_alike(gates: Gates) -> None:
    short = {"steps": 2, "global_batch_size": 16}
    found = gates.verdict("wrong_dropout_on_all_gpus", 2, task="utsa-mnist", device="cuda", **short)
    assert any("the same random numbers are drawn for two parts of a slice" in line for line in found["problems"])


# What is timed


def test_queued_work_is_counted_once() -> None:
    spawned(_timed, 1, gpus=1)


def _timed(ranks: Ranks) -> None:
    """A step that is queued is its block's, what a pause queues is the pause's: whoever waits for it."""
    gpu, began = pretended_gpu.gpu(ranks.device), time.perf_counter()
    stopwatch = Stopwatch(ranks.devices, 0)
    gpu.queue(0.3)
    stopwatch.tick()
    with stopwatch.paused("evaluation"):
        gpu.queue(0.2)
    gpu.queue(0.1)
    stopwatch.tick()
    stopwatch.pause()
    counted, paused = sum(block.seconds for block in stopwatch.take()), stopwatch.take_paused()["evaluation"]
    assert counted >= 0.4 - 1e-6
    assert paused >= 0.2 - 1e-6
    assert counted + paused <= time.perf_counter() - began
