"""A training under DeepSpeed goes on at another number of processes, and under another of its strategies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import debian_packages
from preloaded import spawned
from relay.process.ranks import Ranks
from sharded import batch, built, of_task, prepared
from stacks import provide

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def deepspeed() -> None:
    """The tests' own forks see the stack's packages."""
    debian_packages.require()
    provide("deepspeed")


def _begin(ranks: Ranks, strategy: str, place: Path) -> None:
    task = of_task("gpt-tiny", place / "text", "fp64")
    trained = built(strategy, ranks, task)
    for _ in range(2):
        trained.train_step(batch(task, trained))
    trained.save(place / "middle").result()
    trained.train_step(batch(task, trained))
    whole = trained.whole_model()
    if ranks.rank == 0:
        torch.save(whole, place / "unbroken.pt")


def _go_on(ranks: Ranks, strategy: str, place: Path) -> None:
    task = of_task("gpt-tiny", place / "text", "fp64")
    resumed = built(strategy, ranks, task)
    resumed.load(place / "middle")
    resumed.train_step(batch(task, resumed))
    whole = resumed.whole_model()
    if ranks.rank == 0:
        torch.save(whole, place / "resumed.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "processes", "limit"),
    [
        ("zero1", 4, 1e-12),
        pytest.param("zero3", 2, 0.0, marks=pytest.mark.long),
    ],
)
def test_it_goes_on(second: str, processes: int, limit: float, tmp_path: Path) -> None:
    """Only the long case goes on bit for bit."""
    (tmp_path / "text").mkdir()
    prepared("gpt-tiny", tmp_path / "text")
    spawned(_begin, 2, "zero3", tmp_path)
    spawned(_go_on, processes, second, tmp_path)
    unbroken, resumed = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("unbroken", "resumed"))
    assert unbroken.keys() == resumed.keys()
    assert max(float((unbroken[name] - resumed[name]).abs().max()) for name in unbroken) <= limit
