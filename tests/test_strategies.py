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
BEFORE, AFTER = 4, 3  # steps before the checkpoint, and after it
BATCH = 16


@pytest.fixture
def further_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Strategies of these tests, and of an empty folder, can be imported: as in a run's snapshot of the code."""
    places = [*strategies.__path__, str(FOLDER), str(tmp_path)]
    monkeypatch.setattr(strategies, "__path__", places)
    return tmp_path


# What the planner reads


def test_both_readings_of_the_requirements_agree(further_folders: Path) -> None:
    """The planner reads the file's text, the gate and the trainer the imported class."""
    for name, file in FILES.items():
        read = strategy_files.read(file)
        assert read == strategies.load(name).requirements, name
        assert set(read.divides) <= set(DIVISIBLE), name
        assert read.twin is None or read.twin in FILES, name


# What is saved


def training(name: str, ranks: Ranks) -> Strategy:
    """A strategy at its start, on LeNet."""
    return strategies.load(name)(task(spec("lenet-digits"), "fp32"), ranks, BATCH, {})


def batches(strategy: Strategy) -> Iterator[Batch]:
    """This rank's slices of made-up batches, always the same ones."""
    generator, replica = torch.Generator().manual_seed(3), strategy.replica
    while True:
        inputs = torch.randn(BATCH, 3, 32, 32, generator=generator)
        targets = torch.randint(10, (BATCH,), generator=generator)
        yield inputs.chunk(replica.count)[replica.index], targets.chunk(replica.count)[replica.index]


def trained(strategy: Strategy, first: int, last: int) -> dict[str, torch.Tensor]:
    """This rank's model after these steps, as a copy."""
    for _ in strategy.train_steps(islice(batches(strategy), first, last)):
        pass
    return {name: tensor.clone() for name, tensor in strategy.model.state_dict().items()}


def _saved_and_loaded(ranks: Ranks, folder: Path) -> None:
    """A training that goes on from its checkpoint ends as the one that was never interrupted, bit for bit."""
    uncut = training("ddp", ranks)
    at_checkpoint = trained(uncut, 0, BEFORE)
    uncut.save(folder / "saved").result()
    end = trained(uncut, BEFORE, BEFORE + AFTER)

    resumed = training("ddp", ranks)
    assert not _equal(resumed.model.state_dict(), at_checkpoint)
    resumed.load(folder / "saved")
    assert _equal(resumed.model.state_dict(), at_checkpoint)
    whole = resumed.whole_model()
    assert ranks.rank > 0 or _equal(whole, at_checkpoint)
    assert _equal(trained(resumed, BEFORE, BEFORE + AFTER), end)
    assert not _equal(end, at_checkpoint)
    torch.save((at_checkpoint, end), folder / f"{ranks.rank}.pt")
    for name in ("ddp", "fsdp"):
        statistics_come_back(name, ranks, folder / name)


def _equal(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(mine) == list(other) and all(torch.equal(tensor, other[name]) for name, tensor in mine.items())


def statistics_come_back(name: str, ranks: Ranks, folder: Path) -> None:
    """BatchNorm's running statistics are each replica's own, and so they are after a checkpoint."""
    normalised = task(spec("resnet18-cifar10", norm="batch", width=4), "fp32")
    strategy, resumed = (strategies.load(name)(normalised, ranks, BATCH, {}) for _ in range(2))
    for _ in strategy.train_steps(islice(batches(strategy), BEFORE)):
        pass
    strategy.save(folder).result()
    resumed.load(folder)
    mine, back = (dict(its.model.named_buffers()) for its in (strategy, resumed))
    assert _equal(mine, back)
    other = ranks.gather({key: tensor.clone() for key, tensor in mine.items()})[1 - ranks.rank]
    assert not _equal(mine, other)


@pytest.mark.slow
def test_ddp_goes_on_from_its_checkpoint_bit_for_bit_and_one_process_reads_it(ranks: Ranks, tmp_path: Path) -> None:
    spawned(_saved_and_loaded, 2, tmp_path)
    (at_checkpoint, end), (other_rank, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert _equal(at_checkpoint, other_rank)
    single = training("cpu", ranks)
    single.load(tmp_path / "saved")
    assert _equal(single.whole_model(), at_checkpoint)
    # From there on it computes the same, but for the order of sums.
    ended = trained(single, BEFORE, BEFORE + AFTER)
    assert all(torch.allclose(ended[name], end[name], rtol=0, atol=1e-4) for name in end)


def test_training_goes_as_far_as_its_losses_are_taken(ranks: Ranks) -> None:
    """Between two steps the caller evaluates, saves and sets the rate: no step must be trained ahead of it."""
    strategy = training("cpu", ranks)
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
    assert _equal(trained(strategy, 2, 4), before)


def test_an_overflow_in_gradients_of_one_kind_counts_whatever_the_others_are() -> None:
    wide, usual = (torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in (torch.float64, torch.float32))
    wide.grad, usual.grad = torch.full_like(wide, torch.inf), torch.zeros_like(usual)
    found = torch.zeros(1)
    scaler: Any = None  # it needs no state for this
    LossScaler._unscale_grads_(scaler, torch.optim.SGD([wide, usual]), torch.ones(1), found)
    assert found.item() > 0
