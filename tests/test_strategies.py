"""Strategies: what the planner reads of them is what they are, and what they save is what they load."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from gate_runs import FOLDER
from own_tasks import spec, task
from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec import strategy_files
from relay.spec.requirements import DIVISIBLE
from relay.strategies._scaler import LossScaler
from relay.strategies.base import Strategy
from relay.task.batches import Batch
from stacks import of_stack

FILES = of_stack("torch") | {
    name: path for name, path in strategy_files.find([FOLDER]).items() if path.parent == FOLDER
}
BATCH = 16


# What the planner reads


def test_both_readings_of_the_requirements_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner reads the file's text, the gate and the trainer the imported class."""
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(FOLDER)])
    for name, file in FILES.items():
        read = strategy_files.read(file)
        assert read == strategies.load(name).requirements, name
        assert set(read.divides) <= set(DIVISIBLE), name
        assert read.twin is None or read.twin in FILES, name


# What is saved


def batches(strategy: Strategy) -> Iterator[Batch]:
    """This rank's slices of made-up batches, always the same ones."""
    generator, replica = torch.Generator().manual_seed(3), strategy.replica
    while True:
        inputs = torch.randn(BATCH, 3, 32, 32, generator=generator)
        targets = torch.randint(10, (BATCH,), generator=generator)
        yield inputs.chunk(replica.count)[replica.index], targets.chunk(replica.count)[replica.index]


def _equal(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(mine) == list(other) and all(torch.equal(tensor, other[name]) for name, tensor in mine.items())


def _come_back(ranks: Ranks, folder: Path) -> None:
    normalised = task(spec("resnet18-cifar10", norm="batch", width=4), "fp32")
    for name in ("ddp", "fsdp"):
        strategy, resumed = (strategies.load(name)(normalised, ranks, BATCH, {}) for _ in range(2))
        for _ in strategy.train_steps(islice(batches(strategy), 4)):
            pass
        strategy.save(folder / name).result()
        resumed.load(folder / name)
        mine, back = (dict(its.model.named_buffers()) for its in (strategy, resumed))
        assert _equal(mine, back)
        other = ranks.gather({key: tensor.clone() for key, tensor in mine.items()})[1 - ranks.rank]
        assert not _equal(mine, other)


@pytest.mark.slow
def test_statistics_are_each_replicas_own_also_after_a_checkpoint(tmp_path: Path) -> None:
    spawned(_come_back, 2, tmp_path)


def test_training_goes_as_far_as_its_losses_are_taken(ranks: Ranks) -> None:
    """Between two steps the caller evaluates, saves and sets the rate: no step must be trained ahead of it."""
    strategy = strategies.load("cpu")(task(spec("lenet-digits"), "fp32"), ranks, BATCH, {})
    taken: list[Batch] = []

    def noted() -> Iterator[Batch]:
        for batch in batches(strategy):
            taken.append(batch)
            yield batch

    losses = list(islice(strategy.train_steps(noted()), 2))
    assert len(losses) == len(taken) == 2
    assert all(loss.shape == () and not loss.requires_grad for loss in losses)
    strategy.set_learning_rate(0.0)
    before = {name: tensor.clone() for name, tensor in strategy.model.state_dict().items()}
    assert len([*strategy.train_steps(islice(batches(strategy), 2, 4))]) == 2
    assert _equal(strategy.model.state_dict(), before)


def test_an_overflow_in_gradients_of_one_kind_counts_whatever_the_others_are() -> None:
    wide, usual = (torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in (torch.float64, torch.float32))
    wide.grad, usual.grad = torch.full_like(wide, torch.inf), torch.zeros_like(usual)
    found = torch.zeros(1)
    scaler: Any = None  # it needs no state for this
    LossScaler._unscale_grads_(scaler, torch.optim.SGD([wide, usual]), torch.ones(1), found)
    assert found.item() > 0
