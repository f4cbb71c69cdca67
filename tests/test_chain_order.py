"""`relay.chain` where the next job has other orders, nested samplers, numpy's numbers, or a disk that fails."""

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, DistributedSampler

from chain_here import fitted
from chain_results import assert_same
from pages import blocks
from relay.chain import ChainError, files, resume, sealed
from relay.chain.loader import batches
from relay.chain.state import State

pytestmark = pytest.mark.usefixtures("in_a_script", "kept")

STEPS, CUT = 32, 16
Order = Callable[[list[nn.Parameter]], list[Any]]


def trained(order: Order, stop: int | None = None) -> list[torch.Tensor]:
    """The weights after a job of the training of six layers of one shape, whose optimizer has them in this order."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(6)))
    optimizer = torch.optim.AdamW(order(list(model.parameters())), lr=0.05)
    return fitted(resume(model=model, optimizer=optimizer), model, optimizer, STEPS, stop)


@pytest.mark.slow
def test_an_optimizers_state_goes_to_the_parameter_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of parameters has another order in each process, and all have one shape; one may be of no module."""
    stranger = partial(nn.Parameter, torch.zeros(1))
    (tmp_path / "uncut").mkdir()
    monkeypatch.chdir(tmp_path / "uncut")
    uncut = trained(lambda given: [stranger(), *given[::-1]])
    monkeypatch.chdir(tmp_path)
    trained(lambda given: [stranger(), *given[::-1]], CUT)
    assert_same(trained(lambda given: [stranger(), *given]), uncut)


def test_other_groups_are_refused_by_the_parameters_name() -> None:
    def parted(at: int) -> Order:
        return lambda given: [{"params": given[:at]}, {"params": given[at:], "lr": 0.01}]

    trained(parted(3), CUT)
    with pytest.raises(ChainError, match=r"optimizer: model\.2\.weight is in group 0 there, and in group 1 here"):
        trained(parted(2))


class Numbers(list[int]):
    """Samples, and the epoch that they were told."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def within_a_batch_sampler() -> tuple[DataLoader[int], Any]:
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
    return DataLoader(range(8), batch_sampler=BatchSampler(sampler, 2, drop_last=False)), sampler


def within_a_concatenated_set() -> tuple[DataLoader[int], Any]:
    data = Numbers(range(8))
    return DataLoader(ConcatDataset([range(8), data])), data


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


def test_one_failed_save_ends_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
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

    def described(path: Path) -> dict[str, Any]:
        if fail.pop() if fail else False:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return files.described(path)

    fail.append(True)
    monkeypatch.setattr(sealed, "described", described)
    monkeypatch.setattr(sealed, "AWAY_SECONDS", 0.0)
    assert resume(model=nn.Linear(1, 1)).step == 6
    assert not fail


def test_a_scaler_that_was_off_and_is_on_is_one_line() -> None:
    run = resume(model=nn.Linear(1, 1), scaler=torch.amp.GradScaler("cpu", enabled=False))
    for step, _ in run.steps([1]):
        run.after(step)
    run._lock.close()
    with pytest.raises(ChainError, match="scaler cannot go on with what was saved: RuntimeError: The source state"):
        resume(model=nn.Linear(1, 1), scaler=torch.amp.GradScaler("cpu"))


# The loops of the page, each killed on its way: they end bit for bit as those that nobody killed.


SETUP, *LOOPS = [each.text for each in blocks("docs/chain-loops.md") if each.language == "python"]
KILLED = 23  # saved every 5 steps


class Killed(BaseException):
    """In place of SIGKILL: the process would do nothing more."""


def looped(loop: str, killed: int | None) -> dict[str, torch.Tensor]:
    """The weights after a job of the loop, which is killed after that step."""
    space: dict[str, Any] = {}
    exec(SETUP, space)
    runs = []

    def begun(**things: Any) -> Any:
        runs.append(run := resume(save_steps=5, **things))
        vars(run)["after"] = lambda step, after=run.after: (after(step), until_killed(run, step))
        return run

    def until_killed(run: Any, step: int) -> None:
        if writing := run._saver.writing:
            writing.result()
        if step == killed:
            raise Killed

    space["resume"] = begun
    with suppress(Killed):
        exec(loop, space)
    for run in runs:
        run._lock.close()
    return space["model"].state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop",
    LOOPS,
    ids=["fetched ahead", "no epochs", "two networks", "accumulated", "accumulated by batches", "stream, ema, scaler"],
)
def test_a_loop_of_the_page_ends_as_if_nobody_had_killed_it(loop, tmp_path: Path, monkeypatch, capsys) -> None:
    ends = []
    for name, kills in (("uncut", (None,)), ("cut", (KILLED, None))):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        ends.append([looped(loop, killed) for killed in kills][-1])
    assert all(torch.equal(one, ends[1][key]) for key, one in ends[0].items())
    told = capsys.readouterr()
    assert (told.out + told.err).count("goes on from step") == 1


def test_each_rank_keeps_its_own_dict_however_large_it_is() -> None:
    kept = {"batch": (torch.ones(2**19), 3), "none": None}
    ranks = SimpleNamespace(world_size=2, rank=1)
    state = State({"model": nn.Linear(1, 1), "kept": kept}, ranks)  # type: ignore[arg-type]
    saved = state.own(state.asked(), ())["further"]["kept"]
    kept |= {"batch": (torch.zeros(2**19), 4), "more": 1}
    state.further["kept"].load_state_dict(saved)
    assert (kept["batch"][0].sum(), kept["batch"][1], kept["more"]) == (2**19, 3, 1)
