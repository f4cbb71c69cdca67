"""`relay.chain` in one process: what is saved and restored, where it goes on, and each mistake in one line."""

import os
import random
import shutil
import signal
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from relay.chain import ChainError, Run, Stopped, resume, sealed, telling, writers
from relay.chain.peers import Agreement, Peers
from small_disks import fill, mounts, small

pytestmark = pytest.mark.usefixtures("in_a_script", "kept")


def model(width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))


class Numbers(Dataset[float]):
    """Samples to which each reading adds random numbers of Python, numpy and torch."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return index + random.random() / 3 + float(np.random.random()) / 3 + float(torch.rand(())) / 3


def own_sampler() -> DataLoader[float]:
    drawn = torch.Generator().manual_seed(5)
    return DataLoader(Numbers(), 2, sampler=RandomSampler(Numbers(), replacement=True, generator=drawn))


def workers_that_draw() -> DataLoader[float]:
    return DataLoader(Numbers(), 2, shuffle=True, num_workers=2)


def trained(make: Any, stop: int | None, *, reread: bool = False) -> list[Any]:
    """What two epochs see from where the last call stopped; its process is told to end after step `stop`."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    run = resume(model=nn.Linear(1, 1))
    torch.rand(3) if run.step == 0 else None
    seen: list[Any] = []
    for step, batch in run.steps(make(), epochs=2, reread=reread):
        seen.append((step, torch.as_tensor(batch).tolist(), torch.rand(()).item(), random.random()))
        if step == stop:
            signal.raise_signal(signal.SIGTERM)
        try:
            run.after(step)
        except Stopped:
            break
    return seen


# Within an epoch, and at its end.
@pytest.mark.slow
@pytest.mark.parametrize(("make", "stop", "reread"), [(own_sampler, 6, False), (workers_that_draw, 4, True)])
def test_batches_and_random_numbers_go_on_as_if_uncut(make: Any, stop: int, reread: bool) -> None:
    uncut = trained(make, None)
    shutil.rmtree("checkpoints")
    parts = trained(make, stop) + trained(make, None, reread=reread)
    assert parts == uncut
    assert trained(make, None) == []  # all is done


@pytest.mark.slow
def test_another_batch_size_is_told_and_refused_within_an_epoch(monkeypatch, capsys) -> None:
    def sized(batch_size: int) -> DataLoader[float]:
        return DataLoader(Numbers(), batch_size)

    monkeypatch.setattr(sys, "argv", ["train.py", "--batch-size", "2"])
    assert len(trained(lambda: sized(2), 4)) == 4
    monkeypatch.setattr(sys, "argv", ["train.py", "--batch-size", "3"])
    changed = "the loader's epoch had 6 batches of 2 samples, and has 4 batches of 3 samples now"
    with pytest.raises(ChainError, match=f"{changed}: after batch 4 of epoch 0 it would go on at another place; give"):
        trained(lambda: sized(3), None)
    assert "the command's words were '--batch-size 2', and are '--batch-size 3' now" in capsys.readouterr().err
    shutil.copytree("checkpoints", "accepted")
    assert len(trained(lambda: sized(2), 6)) == 2
    assert len(trained(lambda: sized(3), None)) == 4
    assert f"{changed}\n" in capsys.readouterr().err
    shutil.rmtree("checkpoints")
    Path("accepted").rename("checkpoints")
    monkeypatch.setenv(telling.ACCEPT, "1")
    seen = [[int(sample) for sample in batch] for _, batch, *_ in trained(lambda: sized(3), None)]
    assert seen == [[6, 7, 8], [9, 10, 11], [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


@pytest.mark.slow
def test_everything_with_a_state_is_restored() -> None:
    def made() -> dict[str, Any]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        ema = torch.optim.swa_utils.AveragedModel(net)
        return {"model": net, "optimizer": optimizer, "scheduler": scheduler, "ema": ema,
                "scaler": torch.amp.GradScaler("cpu", init_scale=8.0)}  # fmt: skip

    first = made()
    run = resume(**first)
    for step, _ in run.steps(range(3)):
        first["scaler"].scale(first["model"](torch.ones(1, 2)).sum()).backward()
        first["scaler"].step(first["optimizer"])
        first["scaler"].update(4.0)
        first["scheduler"].step()
        first["ema"].update_parameters(first["model"])
        run.after(step)
    del run  # and with it the folder's lock
    second = made()
    assert resume(**second).step == 3
    for name, thing in first.items():
        torch.testing.assert_close(second[name].state_dict(), thing.state_dict(), rtol=0, atol=0)


def saved(width: int = 4, **given: Any) -> Run:
    net = model(width)
    run = resume(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), **given)
    for step, _ in run.steps(range(2)):
        run.after(step)
    return run


def test_a_save_by_steps_that_has_to_wait_stays_due() -> None:
    """The one before it is still being written."""
    untroubled: Any = SimpleNamespace(reason=None, end_time=None, leave_room=lambda *_: None)
    agreement = Agreement(Peers(), untroubled, 0, save_seconds=1e9, save_steps=4)
    for step, save in ((4, True), (5, True), (6, False), (8, True)):
        assert agreement.reach(step, 0.0, 1.0).save == save
        agreement.done(step, saved=step == 5)


# Damage


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("harm", "told", "step"),
    [(zeroed, "does not have the", 4), (Path.unlink, "is missing", 3)],
    ids=["and is written again", "and is of a later step"],
)
def test_a_damaged_one_of_a_later_step_pushes_out_no_sound_one(harm, told, step, capsys) -> None:
    """It is passed over."""
    run = resume(model=model())
    for each in (2, 4):
        run.after(each)
        run.finish()
    del run
    harm(Path("checkpoints/step-4/replicated.pt"))
    again = resume(model=model())
    assert again.step == 2
    said = capsys.readouterr().err
    assert f"the checkpoint of step 4 is passed over: checkpoints/step-4/replicated.pt {told}" in said
    assert "goes on from step 2" in said
    again.after(step)
    again.finish()
    assert sorted(path.name for path in Path("checkpoints").glob("step-*")) == ["step-2", f"step-{step}"]
    assert sealed.damage(Path(f"checkpoints/step-{step}")) is None


def test_where_none_is_sound_nothing_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    saved()
    Path("checkpoints/step-2/rank-0.pt").chmod(0o666)
    with pytest.raises(ChainError, match="checkpoints: no checkpoint is sound; remove the folder"):
        saved()
    assert "rank-0.pt can be written by everyone; chmod o-w it" in capsys.readouterr().err


@pytest.mark.usefixtures("open_umask")
def test_a_group_that_may_write_there_is_warned_of_and_everybody_is_refused(monkeypatch, capsys) -> None:
    """A checkpoint is its user's alone. A mount, or an earlier version, may have left it open to a group."""
    monkeypatch.setattr(writers, "_own", lambda _: False)
    saved()
    place = Path("checkpoints/step-2")
    assert [path for path in [place.parent, place, *place.rglob("*")] if path.stat().st_mode & 0o022] == []
    (place / "rank-0.pt").chmod(0o664)
    for path in (place / "rank-0.pt", place.parent):
        capsys.readouterr()
        path.chmod(path.stat().st_mode | 0o020)
        saved()
        warned = [line for line in capsys.readouterr().err.splitlines() if "warning" in line and "members" in line]
        assert len(warned) == 1
        assert f"warning: {path} can be written by the members of group " in warned[0]
    assert place.parent.stat().st_mode & 0o020  # it is left as it was
    place.parent.chmod(0o777)
    with pytest.raises(ChainError, match="checkpoints can be written by everyone; chmod o-w it, or give a folder"):
        saved()


# Mistakes: each is one line


def test_a_checkpoint_of_something_else(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    saved()
    saved(scaler=torch.amp.GradScaler("cpu"))
    assert "checkpoints/step-2 has no scaler: it starts anew" in capsys.readouterr().err
    with pytest.raises(ChainError, match=r"it has optimizer \(SGD\), which is not given"):
        resume(model=model())
    with pytest.raises(ChainError, match=r"model: 0.weight has shape \(4, 2\) there, and shape \(5, 2\) here"):
        saved(width=5)
    path = Path("checkpoints/step-2/manifest.json")
    path.write_text(path.read_text().replace('"world_size": 1', '"world_size": 4'))
    with pytest.raises(ChainError, match="is of 4 processes, and here are 1; start 4; give another folder"):
        saved()
    monkeypatch.setattr(sys, "argv", ["/elsewhere/other.py"])
    with pytest.raises(ChainError, match=r"step-2 belongs to another script: train.py, not other.py; give another"):
        saved()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ChainError, match="WORLD_SIZE is 2, and there is no process group; call init_process_group"):
        saved()


@pytest.mark.slow
def test_a_second_one_in_the_same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.chain.files.WAIT_SECONDS", 1.0)
    held = saved()
    told = r"checkpoints: process \d+ on .* trains in this folder; end it.* delete checkpoints/lock"
    with pytest.raises(ChainError, match=told):
        saved()
    assert held.step == 2


def test_a_full_disk_is_told_and_the_older_checkpoint_stays() -> None:
    with mounts() as mount:
        small(Path("disk"), mount, 400)
        run = resume("disk/checkpoints", model=model())
        run.after(1)
        run.finish()
        fill(Path("disk"))
        run.after(2)
        with pytest.raises(ChainError, match="disk/checkpoints: step 2 could not be saved: No space left on device"):
            run.finish()
        assert sealed.steps(Path("disk/checkpoints")) == [1]


class Around(torch.optim.Optimizer):
    """An optimizer with another one inside, whose state it does not tell."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:
        self.inner.step()


def test_a_scripts_own_generators_and_an_inner_optimizer_are_kept_or_missed(capsys: pytest.CaptureFixture[str]) -> None:
    net, numpys = model(), np.random.default_rng(0)
    around = Around(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    net(torch.ones(1, 2)).sum().backward()
    around.step()
    run = resume(model=net, optimizer=around)
    run.after(1)
    told = capsys.readouterr().err
    assert "a SGD was made and is not saved" in told
    assert "a Generator was made and is not saved; give it: resume(…, rng=rng)" in told

    def drawn(folder: str, kind: type[np.random.BitGenerator]) -> list[float]:
        its = {"a": np.random.Generator(kind(0)), "b": torch.Generator(), "c": random.Random(1)}
        run = resume(folder, model=model(), **its)
        numbers = [its["a"].normal(), float(torch.rand((), generator=its["b"])), its["c"].random()]
        run.after(run.step + 1)
        run.finish()
        run._lock.close()
        return numbers

    for kind in (np.random.PCG64, np.random.MT19937):  # whose states are of different kinds
        expected = np.random.Generator(kind(0)).normal(size=2).tolist()
        assert [drawn(kind.__name__, kind)[0] for _ in range(2)] == expected
    first, second = drawn("others", np.random.PCG64), drawn("others", np.random.PCG64)
    both, python = torch.rand(2, generator=torch.Generator()).tolist(), random.Random(1)
    assert [(first[1], second[1]), (first[2], second[2])] == [tuple(both), (python.random(), python.random())]
    del numpys  # it was alive, so that it could be told of


def test_what_cannot_be_saved_is_refused_before_the_training() -> None:
    with pytest.raises(ChainError, match="model: its lazy layers have no shape yet; pass a batch through it before"):
        resume(model=nn.LazyLinear(2))
    with pytest.raises(ChainError, match=r"kept: .* plain values \(collections.deque\)"):
        resume(model=nn.Linear(1, 1), kept={"last": deque([1])})


def test_an_optimizers_state_keeps_its_precision() -> None:
    net = model().bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for each in net.parameters():
        optimizer.state[each]["master"] = each.detach().float() + 1e-6
    masters = [optimizer.state[each]["master"].clone() for each in net.parameters()]
    run = resume(model=net, optimizer=optimizer)
    run.after(1)
    run.finish()
    run._lock.close()
    optimizer.state.clear()
    resume(model=net, optimizer=optimizer)
    assert all(map(torch.equal, masters, (optimizer.state[each]["master"] for each in net.parameters())))


def test_what_was_forgotten_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    net, other = model(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
    inner = [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ConstantLR(optimizer)]
    given = torch.optim.lr_scheduler.SequentialLR(optimizer, inner, [1])
    forgotten = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    run = resume(model=net, optimizer=optimizer, scheduler=given)
    for step, _ in run.steps(range(3)):
        run.after(step)
    told = capsys.readouterr().err
    schedule = "warning: a ExponentialLR was made and is not saved; give it: resume(…, scheduler=scheduler)\n"
    module = "warning: optimizer trains 2 parameters that are not saved; give their module: resume(…, module=module)\n"
    assert (told.count(schedule), told.count(module), "ConstantLR" in told) == (1, 1, False)
    assert forgotten.last_epoch == 0


# On the way


def test_it_stops_before_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stopped) as stopped:
        saved(time_limit=1)
    assert (stopped.value.code, stopped.value.step) == (75, 1)
    assert "stops after step 1, which is saved: the job's time is nearly over" in capsys.readouterr().err


def test_a_script_that_goes_to_another_folder_saves_where_it_began(tmp_path: Path) -> None:
    """It had made a folder of checkpoints there, and the next job began anew."""
    (tmp_path / "node").mkdir()
    run = resume(model=model())
    for step, _ in run.steps(range(2)):
        os.chdir(tmp_path / "node")
        run.after(step)
    run._lock.close()
    os.chdir(tmp_path)
    assert resume(model=model()).step == 2
