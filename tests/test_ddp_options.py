"""DDP's options: what each computes, what the planner makes of it, and that a resumed run ends like an uncut one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from own_tasks import OWN, bound, spec
from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.strategies.base import Strategy
from relay.task.data import Mapped
from relay.task.split import chosen

PROCESSES, BATCH = 3, 24  # with three, a sum depends on the bucket in which it is made
BEFORE, AFTER = 4, 3  # steps before the checkpoint, and after it
SMALL = {"bucket_mb": 0.05}  # several buckets of LeNet's 0.24 MB
EXACT: dict[str, dict[str, Any]] = {
    "plain": {},
    "small buckets": SMALL,
    "accumulation": {"accumulation": 2} | SMALL,
    "static graph": {"static_graph": True, "accumulation": 4} | SMALL,
    "unused parameters": {"find_unused_parameters": True, "accumulation": 2},
}
LOSSY: dict[str, dict[str, Any]] = {
    "fp16": {"compression": "fp16"} | SMALL,
    "bf16": {"compression": "bf16", "accumulation": 2},
    "powersgd": {"compression": "powersgd", "accumulation": 2} | SMALL,
    "powersgd, later": {"compression": "powersgd", "powersgd_rank": 3, "powersgd_start": BEFORE + 2},
}
# How far each moves the parameters, of their way, in so few steps: at least and at most.
LOSS = {"fp16": (1e-5, 2e-3), "bf16": (1e-4, 5e-2), "powersgd": (1e-2, 0.4), "powersgd, later": (1e-4, 0.3)}


def built(ranks: Ranks, options: dict[str, Any], precision: str = "fp64", strategy: str = "ddp") -> Strategy:
    """The strategy at its start, on LeNet."""
    task = bound(spec(str(OWN / "lenet_random.py")), precision, Path())
    return strategies.load(strategy)(task, ranks, BATCH, options)


def trained(strategy: Strategy, first: int, last: int) -> dict[str, torch.Tensor]:
    """This rank's parameters after these steps of the task."""
    (index, count, _), data = strategy.replica, Mapped(strategy.task.split("train"), torch.device("cpu"))
    for step in range(first, last):
        strategy.train_step(data.fetch(chosen(240, BATCH, 3, step, index, count)))
    return {name: tensor.clone() for name, tensor in strategy.model.state_dict().items()}


def distance(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The L2 norm of all differences together."""
    return float(torch.stack([(mine[name].double() - other[name].double()).norm() for name in other]).norm())


def _each_option(ranks: Ranks, folder: Path) -> None:
    """Every option uncut, and resumed in the middle."""
    found = {}
    cases = {(name, "fp64"): options for name, options in (EXACT | LOSSY).items()}
    cases[("powersgd", "fp32")] = LOSSY["powersgd"]
    cases[("accumulation", "fp16")] = EXACT["accumulation"]
    for number, ((name, precision), options) in enumerate(cases.items()):
        uncut = built(ranks, options, precision)
        trained(uncut, 0, BEFORE)
        uncut.save(folder / f"{number}").result()
        end = trained(uncut, BEFORE, BEFORE + AFTER)
        resumed = built(ranks, options, precision)
        resumed.load(folder / f"{number}")
        again = trained(resumed, BEFORE, BEFORE + AFTER)
        found[name, precision] = (end, all(torch.equal(again[key], end[key]) for key in end))
    torch.save(found, folder / f"rank-{ranks.rank}.pt")


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], tuple[dict[str, Any], bool]]]:
    """Of each process: where every option has led, and whether the resumed run came to the same end."""
    folder = tmp_path_factory.mktemp("ddp")
    spawned(_each_option, PROCESSES, folder)
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(PROCESSES)]


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """This process as the only rank."""
    yield Ranks.join("cpu", "gloo")
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_resumed_run_ends_bit_for_bit_like_an_uncut_one(ends: list[Any]) -> None:
    assert {case for rank in ends for case, (_, same) in rank.items() if not same} == set()


@pytest.mark.slow
def test_all_processes_hold_the_same_model(ends: list[Any]) -> None:
    for case, (end, _) in ends[0].items():
        assert all(distance(rank[case][0], end) == 0 for rank in ends[1:]), case


@pytest.mark.slow
def test_exact_options_compute_what_one_process_does_and_lossy_ones_nearly(ends: list[Any], alone: Ranks) -> None:
    single = built(alone, {}, strategy="cpu")
    start = {name: tensor.clone() for name, tensor in single.model.state_dict().items()}
    reference = trained(single, 0, BEFORE + AFTER)
    way = distance(start, reference)
    off = {name: distance(ends[0][name, "fp64"][0], reference) / way for name in EXACT | LOSSY}
    assert {name: figure for name, figure in off.items() if name in EXACT and figure > 1e-13} == {}
    for name, (least, most) in LOSS.items():
        assert least < off[name] < most, (name, off[name])
