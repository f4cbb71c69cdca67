"""`relay.chain` where the next job has other orders, nested samplers, numpy's numbers, or a disk that fails."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, DistributedSampler

from relay.chain import ChainError, Stopped, resume
from relay.chain.place import batches
from relay.chain.state import State

pytest_plugins = ["chain_here"]
pytestmark = pytest.mark.usefixtures("in_a_script", "kept")

STEPS, CUT = 32, 16
Order = Callable[[list[nn.Parameter]], list[Any]]


def trained(order: Order, stop: int | None = None) -> list[torch.Tensor]:
    """The weights after a job of the training of six layers of one shape, whose optimizer has them in this order."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(6)))
    optimizer = torch.optim.AdamW(order(list(model.parameters())), lr=0.05)
    run = resume(model=model, optimizer=optimizer)
    try:
        for step, x in run.steps([torch.randn(4, 3, generator=torch.Generator().manual_seed(i)) for i in range(STEPS)]):
            optimizer.zero_grad()
            (model(x) - x.flip(1)).square().mean().backward()
            optimizer.step()
            if step == stop:
                signal.raise_signal(signal.SIGTERM)
            run.after(step)
    except Stopped:
        run._lock and run._lock.close()
    return [each.detach().clone() for each in model.parameters()]


def with_a_stranger(given: list[nn.Parameter]) -> list[Any]:
    return [nn.Parameter(torch.zeros(1)), *given[::-1]]


def with_a_stranger_among_them(given: list[nn.Parameter]) -> list[Any]:
    return [nn.Parameter(torch.zeros(1)), *given]


@pytest.mark.slow
def test_an_optimizers_state_goes_to_the_parameter_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of parameters has another order in each process, and all have one shape; one may be of no module."""
    (tmp_path / "uncut").mkdir()
    monkeypatch.chdir(tmp_path / "uncut")
    uncut = trained(with_a_stranger)
    monkeypatch.chdir(tmp_path)
    trained(with_a_stranger, CUT)
    for one, other in zip(trained(with_a_stranger_among_them), uncut, strict=True):
        assert torch.equal(one, other)


def test_other_groups_are_refused_by_the_parameters_name() -> None:
    def halves(given: list[nn.Parameter]) -> list[Any]:
        return [{"params": given[:3]}, {"params": given[3:], "lr": 0.01}]

    def thirds(given: list[nn.Parameter]) -> list[Any]:
        return [{"params": given[:2]}, {"params": given[2:], "lr": 0.01}]

    trained(halves, CUT)
    with pytest.raises(ChainError, match=r"optimizer: model\.2\.weight is in group 0 there, and in group 1 here"):
        trained(thirds)


class Numbers(Dataset[int]):
    """Its samples, and the epoch that it was told."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def within_a_batch_sampler() -> tuple[DataLoader[int], Any]:
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0)
    return DataLoader(Numbers(), batch_sampler=BatchSampler(sampler, 2, drop_last=False)), sampler


def within_a_concatenated_set() -> tuple[DataLoader[int], Any]:
    data = Numbers()
    return DataLoader(ConcatDataset([Numbers(), data])), data


@pytest.mark.parametrize("made", [within_a_batch_sampler, within_a_concatenated_set])
def test_who_draws_by_the_epoch_is_told_it_wherever_it_is(made: Callable[[], tuple[Any, Any]]) -> None:
    loader, told = made()
    run = resume(model=nn.Linear(1, 1))
    run._place.epoch = 3
    list(batches(loader, run._place))
    assert told.epoch == 3


def test_a_schedule_by_numpy_is_saved() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.cos(step / 10))
    optimizer.step()
    schedule.step()
    run = resume(model=model, optimizer=optimizer, schedule=schedule)
    for step, _ in run.steps([1, 2]):
        run.after(step)
    run._lock.close()
    again = resume(model=model, optimizer=optimizer, schedule=schedule)
    assert again.step == 2


def test_what_could_not_be_read_back_is_refused_by_its_name_before_it_is_saved() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State({"model": model, "optimizer": optimizer}, resume(model=nn.Linear(1, 1))._checkpoints.ranks)
    optimizer.param_groups[0]["since"] = datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(ChainError, match=r"optimizer: its state_dict holds more than tensors and plain values"):
        state.check()


def test_a_save_that_fails_once_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A shared disk is away for a moment."""
    written, fail = torch.save, [True]

    def save(*given: Any) -> None:
        if fail.pop() if fail else False:
            raise OSError(errno.EIO, "Input/output error")
        written(*given)

    monkeypatch.setattr("relay.chain.saving.torch.save", save)
    run = resume(model=nn.Linear(1, 1), save_steps=2)
    for step, _ in run.steps(range(1, 7)):
        run.after(step)
    assert "warning: checkpoints: step 2 could not be saved: Input/output error (rank 0)" in capfd.readouterr().err
    run._lock.close()
    assert resume(model=nn.Linear(1, 1)).step == 6


def test_a_temporary_folder_too_long_for_data_workers_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sockets lie there; without them the training waited for ever."""
    long = tmp_path / ("x" * 110)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    run = resume(model=nn.Linear(1, 1))
    told = r"TMPDIR=.*: \d+ characters are too many for data workers' sockets; allowed"
    with pytest.raises(ChainError, match=told):
        next(run.steps(DataLoader(Numbers(), 2, num_workers=1)))
