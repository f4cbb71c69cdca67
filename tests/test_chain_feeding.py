"""`relay.chain` and what feeds a script's steps: samplers that draw by themselves, epochs, numbers of steps."""

import datetime
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

from relay.chain import ChainError, Run, Stopped, resume
from relay.chain.peers import Peers
from relay.chain.signals import Interruption
from relay.chain.state import LARGE_BYTES, State

pytestmark = pytest.mark.usefixtures("in_a_script", "kept")

SAMPLES = TensorDataset(torch.arange(96))
END_IN_TIME = Interruption._end_in_time  # the tests' own scripts have none
CUT = 7  # in the second epoch of 6 steps


class Shuffled(Sampler[int]):
    """A sampler with a generator of its own kind."""

    def __init__(self, generator: Any) -> None:
        self.mine = generator

    def __len__(self) -> int:
        return len(SAMPLES)

    def __iter__(self) -> Iterator[int]:
        order = list(range(len(SAMPLES)))
        self.mine.shuffle(order)
        return iter(order)


def drawn_ahead() -> DataLoader[Any]:
    """It draws 32 samples at a time, for workers that fetch 4 batches ahead."""
    sampler = RandomSampler(SAMPLES, replacement=True, generator=torch.Generator().manual_seed(5))
    return DataLoader(SAMPLES, 16, sampler=sampler, num_workers=2)


def looked_at_before() -> DataLoader[Any]:
    """Its workers have given a batch before the training, as for the shape of a sample."""
    loader = DataLoader(SAMPLES, **BY_WORKERS_THAT_STAY)
    next(iter(loader))
    return loader


class Batches(Sampler[list[int]]):
    """It draws from its own generator when it is asked for an iterator."""

    def __init__(self) -> None:
        self.mine = torch.Generator().manual_seed(4)

    def __len__(self) -> int:
        return len(SAMPLES) // 16

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(len(SAMPLES), generator=self.mine).reshape(-1, 16).tolist())


class Further(DataLoader[Any]):
    """A loader that begins when it is asked for its first batch, such as Accelerate's."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


def seen(made: Callable[[], DataLoader[Any]], stop: int | None = None) -> list[Any]:
    torch.manual_seed(1)
    batches: list[Any] = []
    loader = made()
    run = resume(model=nn.Linear(1, 1))
    try:
        for step, (batch,) in run.steps(loader, epochs=3):
            batches.append((step, batch.tolist()))
            if step == stop:
                signal.raise_signal(signal.SIGTERM)
            run.after(step)
    except Stopped:
        pass
    finally:
        run._lock.close()
        if loader.persistent_workers and loader._iterator:
            loader._iterator._shutdown_workers()  # type: ignore[attr-defined]  # they hold the lock, too
    return batches


def without_a_chain(made: Callable[[], DataLoader[Any]]) -> list[Any]:
    torch.manual_seed(1)
    loader, _ = made(), nn.Linear(1, 1)
    return [*enumerate((batch.tolist() for _ in range(3) for (batch,) in loader), 1)]


STAY: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
BY_WORKERS_THAT_STAY = STAY | {"batch_size": 16, "shuffle": True}
LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "by numpy": lambda: DataLoader(SAMPLES, 16, sampler=Shuffled(np.random.default_rng(3))),
    "by older numpy": lambda: DataLoader(SAMPLES, 16, sampler=Shuffled(np.random.RandomState(3))),
    "by Python": lambda: DataLoader(SAMPLES, 16, sampler=Shuffled(random.Random(3))),
    "drawn ahead": drawn_ahead,
    "looked at before, by workers that stay": looked_at_before,
    "by workers that stay": lambda: DataLoader(SAMPLES, **BY_WORKERS_THAT_STAY),
    "batches drawn at once, by workers that stay": lambda: DataLoader(SAMPLES, batch_sampler=Batches(), **STAY),
    "of a further kind, by workers that stay": lambda: Further(SAMPLES, **BY_WORKERS_THAT_STAY),
}


CUTS = [(name, cut) for name in LOADERS for cut in (6, CUT) if cut == CUT or "that stay" in name]


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_the_order_of_an_epoch_goes_on_whoever_draws_it(name: str, cut: int) -> None:
    made = LOADERS[name]
    uncut = without_a_chain(made)
    assert seen(made) == uncut
    shutil.rmtree("checkpoints")
    assert seen(made, cut) + seen(made) == uncut


def an_own_loop_within_an_epoch(run: Run) -> None:
    for _ in run.epochs(2):
        run.after(run.step + 1)


def a_number_of_the_scripts_own(run: Run) -> None:
    for _ in run.steps(DataLoader(SAMPLES, 16)):
        run.after(1)


def two_loops_within_an_epoch(run: Run) -> None:
    for _ in run.epochs(2):
        for loader in (DataLoader(SAMPLES, 16), DataLoader(SAMPLES, 16)):
            for step, _batch in run.steps(loader):
                run.after(step)


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (an_own_loop_within_an_epoch, r"epoch 0 has taken no step of run\.steps; write within run\.epochs: for"),
        (a_number_of_the_scripts_own, r"run\.after\(1\): it is step 2; give the number that run\.steps has given"),
        (two_loops_within_an_epoch, r"epoch 0 has had its steps; write run\.steps once within run\.epochs"),
    ],
)
def test_a_loop_whose_steps_would_not_be_counted_is_refused(loop: Callable[[Run], None], told: str) -> None:
    with pytest.raises(ChainError, match=told):
        loop(resume(model=nn.Linear(1, 1)))


@pytest.mark.parametrize("killed", [2, 4, None])
def test_a_loop_left_right_after_a_save_is_not_gone_on_with(killed: int | None) -> None:
    """Its checkpoint had said that the epoch goes on."""

    def train(killed: int | None) -> Iterator[tuple[int, int]]:
        run = resume(model=nn.Linear(1, 1), save_steps=2)
        try:
            for epoch in run.epochs(3):
                if run.step == killed:
                    run._saver.finish()
                    return
                for step, (batch,) in run.steps(DataLoader(SAMPLES, 16)):
                    run.after(step)
                    run._saver.finish()
                    yield epoch, int(batch[0])
                    if step % 2 == 0:
                        break
        finally:
            run._lock.close()

    assert [*train(killed), *train(None)] == [(0, 0), (0, 16), (1, 0), (1, 16), (2, 0), (2, 16)]


def test_epochs_after_the_last_step_have_none_and_another_loop_has_its_own_numbers(monkeypatch) -> None:
    run = resume(model=nn.Linear(1, 1), save_steps=9)
    epochs, saves, begin = [], list[int](), run._saver.begin
    monkeypatch.setattr(run._saver, "begin", lambda step: (saves.append(step), begin(step)))
    for epoch in run.epochs(4):
        epochs.append(epoch)
        for step, _ in run.steps(range(6), until=9):
            run.after(step)
    assert (epochs, run.step, saves) == ([0, 1, 2, 3], 9, [9, 9])  # once more, as the epoch had been left
    for _ in run.steps(range(3)):
        break
    run.after(run.step + 1)
    assert run.step == 10


def best() -> SimpleNamespace:
    """What a script keeps of its evaluations."""
    kept: dict[str, Any] = {"tensor": torch.zeros(LARGE_BYTES)}
    return SimpleNamespace(kept=kept, state_dict=lambda: kept, load_state_dict=kept.update)


def test_what_comes_into_a_state_later_pushes_out_no_checkpoint_that_can_be_read() -> None:
    its = best()
    run = resume(model=nn.Linear(1, 1), best=its, save_steps=1)

    def train() -> None:
        for step, _ in run.steps(range(9)):
            its.kept["day"] = "1 May" if step < 5 else datetime.date(2026, 5, 1)
            run.after(step)

    with pytest.raises(ChainError, match=r"best: its state_dict holds more than tensors .*datetime\.date"):
        train()
    run._lock.close()
    assert 1 <= resume(model=nn.Linear(1, 1), best=best()).step < 5


def test_what_is_large_on_one_rank_alone_is_each_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State({"model": nn.Linear(1, 1), "best": best()}, Peers())
    states = state.asked()
    assert state.replicas(states) == {"best"}
    assert "best" in state.replicated(states, {"best"})
    # Another rank has a small one.
    monkeypatch.setattr(Peers, "largest", lambda _, values: [1.0 for _ in values])
    assert state.replicas(states) == set()
    assert "best" not in state.replicated(states, ())
    assert "best" in state.own(states, ())["further"]


def test_a_save_asks_a_script_for_each_state_once() -> None:
    """A user's `state_dict` may be a collective."""
    its, asked = best(), []
    run = resume(model=nn.Linear(1, 1), best=its)
    its.state_dict = lambda: asked.append(run.step) or {}
    run.after(1)
    run.finish()
    assert asked == [1]


def test_a_handler_that_a_script_installs_later_keeps_no_training_from_saving() -> None:
    interruption, (wakeups, tell) = Interruption(), os.pipe2(os.O_NONBLOCK)
    os.write(tell, bytes([signal.SIGTERM]))  # as Python does beside any handler
    interruption._wait = lambda *_: setattr(interruption, "ended", True)  # type: ignore[method-assign]
    threading.Thread(target=END_IN_TIME, args=[interruption, wakeups], daemon=True).start()
    until = time.monotonic() + 60
    while interruption.reason is None and time.monotonic() < until:
        time.sleep(0.05)
    assert interruption.reason == "SIGTERM"


def test_many_trainings_in_one_process_begin_at_once() -> None:
    """Python's `signal` makes a text of the handler before, which held that of the training before, four times."""
    for _ in range(15):
        Interruption().watch(last_resort=False)
