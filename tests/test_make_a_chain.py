"""`relay.chain` in one process: what is saved and restored, where it goes on, and each mistake in one line."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from living import LONGEST_SECONDS, until
from relay.base.files import read_json
from relay.chain import ChainError, Run, Stopped, resume, sbatch, sealed, supervisor, telling, writers
from relay.chain import command as chain_command
from relay.chain.peers import Agreement, Peers
from relay.chain.slurm import END_TIME, end_time, in_environment, seconds_of
from small_disks import fill, mounts, small

ROOT = Path(__file__).resolve().parents[1]
CHAIN = ROOT / "scripts" / "relay" / "chain"


pytest_plugins = ["chain_here"]
pytestmark = pytest.mark.usefixtures("in_a_script", "kept")


@pytest.fixture(autouse=True)
def _under_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.chain.files.WAIT_SECONDS", 1.0)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_END_TIME", END_TIME):
        monkeypatch.delenv(name, raising=False)


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
def test_another_batch_size_is_told_and_refused_within_an_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def saved(steps: int = 2, width: int = 4, **given: Any) -> Run:
    net = model(width)
    run = resume(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), **given)
    for step, _ in run.steps(range(steps)):
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
def test_a_damaged_one_of_a_later_step_pushes_out_no_sound_one(
    harm: Callable[[Path], None], told: str, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_group_that_may_write_there_is_warned_of_and_everybody_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint is its user's alone. A mount, or an earlier version, may have left it open to a group."""
    monkeypatch.setattr(writers, "_own", lambda _: False)
    before = os.umask(0o002)
    try:
        saved()
    finally:
        os.umask(before)
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
def test_a_second_one_in_the_same_folder() -> None:
    held = saved()
    with pytest.raises(ChainError, match=r"checkpoints: process \d+ on .* trains in this folder; end it"):
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


# Time


def test_a_limit_is_read_as_slurm_reads_it() -> None:
    assert [seconds_of(limit) for limit in ("2:30", "1-2:3", 5.5)] == [150, 93780, 5.5]


def test_the_earliest_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end_time() is None
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 1000))
    monkeypatch.setenv(END_TIME, str(time.time() + 500))
    assert end_time("1-0") == pytest.approx(time.time() + 500, abs=5)
    assert end_time(1) < time.time()  # type: ignore[operator]  # counted from the process's start
    monkeypatch.setenv("SLURM_JOB_END_TIME", "nan")
    assert in_environment() is None


def test_it_stops_before_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stopped) as stopped:
        saved(time_limit=1)
    assert (stopped.value.code, stopped.value.step) == (75, 1)
    assert "stops after step 1, which is saved: the job's time is nearly over" in capsys.readouterr().err


# What Slurm's commands answer


def answers(name: str, text: str) -> None:
    """A command of Slurm's in this folder, as a site or a busy controller has it."""
    Path(name).write_text(f"#!/bin/sh\n{text}\n")
    Path(name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chain's script, whose last job was 7."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answers("sbatch", "echo 'Welcome! 3 jobs of yours run.'; echo '17;cluster'")
    answers("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --time=1\nrelay-chain python train.py\n")
    Path(".job.sh.chain").write_text('{"job": "7", "after": null}')
    return Path(".job.sh.chain")


def in_a_job(monkeypatch: pytest.MonkeyPatch, record: Path, number: str = "9") -> None:
    """This process is a job of that script's chain."""
    monkeypatch.setenv(sbatch.CHAIN, json.dumps(vars(sbatch.Chain(["job.sh"], ".", str(record.absolute()), 5))))
    monkeypatch.setenv("SLURM_JOB_ID", number)


@pytest.fixture
def job(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its job 9, which runs; the chain's file."""
    in_a_job(monkeypatch, slurm)
    answers("squeue", "")
    return slurm


def test_a_greeting_is_no_part_of_a_jobs_number_nor_the_scripts_words_of_sbatchs(slurm: Path) -> None:
    assert sbatch.main(["job.sh"]) == 0
    assert read_json(slurm)["job"] == "17;cluster"
    answers("squeue", "echo Welcome; case $* in *--clusters=cluster*) echo 17 17;; esac")
    with pytest.raises(ChainError, match="job 17;cluster is queued or runs; cancel it first: scancel 17 --clusters=c"):
        sbatch.main(["job.sh"])
    answers("squeue", "echo Welcome")
    assert sbatch.main(["./job.sh", "--export=NONE", "--array=0-3"]) == 0  # the script's own words
    with pytest.raises(ChainError, match=r"--array=0-3: each job of an array"):
        sbatch.main(["--array=0-3", "./job.sh"])
    answers("sbatch", "echo 'Welcome!'")
    with pytest.raises(ChainError, match="no job's number in what it printed: 'Welcome!'; look with squeue"):
        sbatch.main(["job.sh"])


def test_the_users_defaults_and_options_change_neither_what_is_waited_for_nor_what_is_asked(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_WAIT", "SBATCH_ARRAY_INX", "SLURM_CLUSTERS", "SLURM_JOB_ID", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "1")
    answers("sbatch", "echo $*, $(env | grep -E '^SBATCH|^SLURM') >> asked; echo 17")
    chain = sbatch.Chain(["--dependency=afterok:3", "job.sh", "--lr=1"], ".", str(slurm.absolute()), 5)
    assert chain.submit("--dependency=afterany:9") == "17"  # the last one counts
    words, environment = Path("asked").read_text().strip().split(", ")
    assert words == "--parsable --dependency=afterok:3 --dependency=afterany:9 job.sh --lr=1"
    assert set(environment.split()) == {"SBATCH_PARTITION=1", "SBATCH_OPEN_MODE=append"}


def test_the_jobs_end_is_found_beside_its_other_parts_or_a_line_says_that_it_is_not(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    answers("squeue", 'echo Welcome; date -d @2000000000 +"9 9+0 $SLURM_TIME_FORMAT"; echo 10 9+1 2000000060')
    assert (end_time(), capsys.readouterr().err) == (2e9, "")
    answers("squeue", "echo 9 9_[1-3] N/A")  # no limit
    assert end_time() is None
    assert "Slurm tells no end of job 9 (N/A)" in capsys.readouterr().err
    answers("squeue", "echo 'Resource temporarily unavailable' >&2; exit 1")
    assert end_time() is None
    assert "(squeue: Resource temporarily unavailable)" in capsys.readouterr().err


def test_what_slurm_refuses_at_the_end_is_told_and_the_trainings_status_stands(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The script lies where nodes cannot write, too: a second chain of it would not be noticed."""
    chain = json.dumps(vars(sbatch.Chain(["job.sh"], ".", "/proc/none/.job.sh.chain", 5)))
    answers("scancel", "echo 'Unable to contact slurm controller' >&2; exit 1")
    for sbatch_says, status, told in (
        ("echo 17", 0, "warning: job 17 is still to come: scancel: Unable to contact slurm controller"),
        ("echo QOSMaxSubmitJobPerUserLimit >&2; exit 1", 75, "sbatch: QOSMaxSubmitJobPerUserLimit; submit it again"),
    ):
        monkeypatch.setenv(sbatch.CHAIN, chain)
        answers("sbatch", sbatch_says)
        assert chain_command.main(["sh", "-c", f"exit {status}"]) == status
        said = capfd.readouterr().err
        assert told in said
        assert ("another chain of this script would not be noticed" in said) == (status == 0)


@pytest.mark.parametrize(
    ("temporary", "told"), [(None, "torchrunn: No such file"), ("/proc/none", "no folder for temporary files: No such")]
)
def test_a_command_that_cannot_be_started_ends_the_chain(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, temporary: str | None, told: str
) -> None:
    """The next job could not start it either."""
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    in_a_job(monkeypatch, slurm)
    answers("squeue", "")
    answers("scancel", "echo $* > cancelled")
    with pytest.raises(ChainError, match=told):
        chain_command.main(["torchrunn", "train.py"])
    assert Path("cancelled").read_text() == "17 --clusters=cluster\n"


@pytest.mark.slow
def test_a_shell_is_not_told_to_end_in_place_of_its_script_which_is_waited_for() -> None:
    """A shell would die at once of SIGTERM; a job that is ended signals both of them, the shell sometimes first."""
    saves, ended = "trap 'sleep 0.5; touch saved; exit 75' TERM;", "kill -TERM $RELAY; while :; do sleep 0.1; done"
    Path("both.sh").write_text(f"{saves} kill -TERM $PPID; sleep 0.3; {ended}")
    Path("inner.sh").write_text(f"{saves} {ended}")
    for script, after in (("inner.sh", True), ("both.sh", False)):
        words = f"RELAY={os.getpid()} sh {script}; touch after; exit 3"
        assert chain_command.main(["sh", "-c", words]) == 75
        assert (Path("saved").exists(), Path("after").exists()) == (True, after)
        for left in ("saved", "after"):
            Path(left).unlink(missing_ok=True)


def test_what_does_not_end_is_killed_at_the_jobs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_SECONDS", "MEANWHILE_SECONDS"):
        monkeypatch.setattr(chain_command, name, 0.2)
    deaf = f"trap : TERM; kill -TERM {os.getpid()}; while :; do sleep 0.1; done"
    for least in (0.4, 1.4):  # where no end is known, and then in a job that ends soon
        began = time.time()
        assert chain_command.main(["sh", "-c", deaf]) == 75
        assert least < time.time() - began < LONGEST_SECONDS
        monkeypatch.setenv("SLURM_JOB_ID", "9")
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 1.5))


def test_a_signal_to_the_jobs_shell_alone_ends_its_script_in_time(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`#SBATCH --signal=B:USR1@60` ends the shell at once; what it has started would train on beside the next job."""
    Path("inner.sh").write_text("trap 'touch saved; exit 75' TERM; touch begun; while :; do sleep 0.1; done")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "scripts"))
    shell = subprocess.Popen(["sh", "-c", f"{sys.executable} -m relay.chain sh inner.sh; true"])
    until(Path("begun").exists, "the script runs")
    shell.send_signal(signal.SIGUSR1)
    shell.wait()
    until(Path("saved").exists, "it has saved")


def test_a_launcher_outlives_the_signal_that_its_ranks_save_at() -> None:
    """Slurm's SIGUSR1 or 2 comes to all processes of a job; torchrun knows none but SIGTERM."""
    assert chain_command.main(["sh", "-c", "kill -USR1 $$; kill -USR2 $$; exit 3"]) == 3


def test_the_ranks_of_a_killed_torchrun_end_with_it() -> None:
    """Those that have not met yet know of no launcher, and would wait for it beside the next job."""
    Path("torchrun").write_text("#!/bin/sh\necho $$ > launcher\nsetsid sh -c 'echo $$ > rank; exec sleep 300' & wait\n")
    Path("torchrun").chmod(0o755)
    own = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    job = subprocess.Popen([sys.executable, "-m", "relay.chain", "./torchrun"], env=own)
    until(lambda: Path("rank").exists() and Path("rank").read_text().endswith("\n"), "the rank has begun")
    os.kill(int(Path("launcher").read_text()), signal.SIGKILL)
    assert job.wait(LONGEST_SECONDS) == 128 + signal.SIGKILL
    assert supervisor.stat_fields(int(Path("rank").read_text())) is None


@pytest.mark.parametrize(
    ("ends", "status"),
    [("os.kill(os.getpid(), 9)", 137), ("raise ValueError", 1), ("training.end(); os.kill(os.getpid(), 15)", 1)],
    ids=["killed", "failed", "ended by torchrun after its training"],
)
def test_a_rank_that_was_killed_is_told_from_one_that_has_failed(ends: str, status: int) -> None:
    """torchrun's status is 1 for each. The chain goes on after a kill alone."""
    rank = f"import os; from relay.chain.signals import Interruption as I; training = I(); training.watch(); {ends}"
    Path("torchrun").write_text(f"#!/bin/sh\nTORCHELASTIC_RUN_ID=x {sys.executable} -c '{rank}'\nexit 1\n")
    Path("torchrun").chmod(0o755)
    own = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run([sys.executable, "-m", "relay.chain", "./torchrun"], env=own, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("a rank was killed" in done.stderr) == (status == 137)


def test_a_rank_that_waits_before_it_resumes_ends_with_its_torchrun() -> None:
    """Also where nobody is left to end it."""
    Path("rank.py").write_text("from relay.chain import resume\nopen('waits', 'w')\nimport time\ntime.sleep(300)\n")
    own = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "TORCHELASTIC_RUN_ID": "x"}
    launcher = subprocess.Popen(["sh", "-c", f"{sys.executable} rank.py & echo $! > rank; wait"], env=own)
    until(Path("waits").exists, "it waits")
    launcher.kill()
    launcher.wait()
    until(lambda: supervisor.stat_fields(int(Path("rank").read_text())) is None, "it has ended")


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


def test_no_second_chain_begins_while_nobody_knows_of_the_first(slurm: Path) -> None:
    answers("squeue", "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1")
    with pytest.raises(ChainError, match="squeue: slurm_load_jobs error: Socket timed out"):
        sbatch.main(["job.sh"])
    assert read_json(slurm)["job"] == "7"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue", "submits", "new"), [("", True, "17"), ("18 afterany:9(unfulfilled)", False, "18")], ids=["none", "one"]
)
def test_while_sbatch_gives_no_answer_the_job_trains_and_asks_again(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], queue: str, submits: bool, new: str
) -> None:
    """Of a job that was submitted and whose number was lost, no second one is made."""
    answers("sbatch", "echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1")
    answers("squeue", f"echo '{queue}'")
    monkeypatch.setattr(chain_command, "MEANWHILE_SECONDS", 0.5)
    mended = "printf '#!/bin/sh\\ntouch submitted; echo 17\\n' > sbatch"
    followed = f'for each in $(seq 600); do grep -q \'"after": "9"\' {job} && break; sleep 0.1; done'
    assert chain_command.main(["sh", "-c", f"{mended}; {followed}; exit 75"]) == 75
    told = capfd.readouterr().err
    lost = "warning: the next job is not submitted yet: sbatch: sbatch: error: Batch job submission failed"
    assert (lost in told) is submits  # the queue is asked first
    assert f"job {new} goes on" in told
    assert read_json(job) == {"job": new, "after": "9"}
    assert Path("submitted").exists() is submits


def test_two_jobs_in_a_row_that_have_saved_no_step_are_the_last(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where there is too little memory, or where no step ends within the limit."""
    answers("scancel", "echo $* >> cancelled")

    def ended(number: str, code: str) -> str:
        in_a_job(monkeypatch, job, number)
        code = f"import os; from relay.chain.telling import tell; {code}; os.kill(os.getpid(), 9)"
        assert chain_command.main([sys.executable, "-c", code]) == 128 + 9
        return capfd.readouterr().err

    goes_on = "job 17;cluster goes on"
    assert goes_on in ended("9", "tell('resumed', 4)")
    assert goes_on in ended("10", "tell('resumed', 4); tell('saved', 5)")
    assert goes_on in ended("11", "tell('resumed', 5)")
    assert goes_on in ended("12", "pass")  # nobody tells, as in a container
    assert goes_on in ended("13", "tell('resumed', 5)")
    assert goes_on in ended("13", "tell('resumed', 5)")  # Slurm has started it again
    assert not Path("cancelled").exists()
    said = ended("14", "tell('resumed', 5)")
    assert "2 jobs in a row have saved no step; give a job more memory, or a longer limit" in said
    assert goes_on not in said
    assert Path("cancelled").read_text() == "17 --clusters=cluster\n"
    assert sbatch.main(["job.sh"]) == 0
    assert read_json(job) == {"job": "17;cluster", "after": None}


def test_a_script_that_cannot_be_read_is_one_line() -> None:
    with pytest.raises(ChainError, match=r"^/proc/self/mem: Input/output error$"):
        sbatch.main(["/proc/self/mem"])


def test_what_would_keep_the_chain_from_the_next_job_is_refused(slurm: Path) -> None:
    for told, words, why in (
        ("--time=5 --export=NONE", [], "--export=NONE: it hands"),
        ("", ["--export", "NONE"], "--export NONE: it hands"),
        ("-a 1,2%1", [], "-a 1,2%1: each job of an array would submit an array"),
    ):
        Path("job.sh").write_text(f"#!/bin/sh\n#SBATCH {told}\nrelay-chain python train.py -a 3\n")
        with pytest.raises(ChainError, match=why):
            sbatch.main([*words, "job.sh"])
    assert read_json(slurm)["job"] == "7"


# The command


def test_what_a_script_has_told_is_status_75_whatever_its_launcher_makes(capfd: pytest.CaptureFixture[str]) -> None:
    note = """echo '{"step": 3, "reason": "SIGTERM"}' > $RELAY_CHAIN_NOTE"""
    assert chain_command.main(["sh", "-c", f"{note}; exit 1"]) == 75
    assert capfd.readouterr().err == ""
    early = "trap '' TERM; kill -USR1 $PPID; sleep 0.3; test -e ${RELAY_CHAIN_NOTE%/*}/early"
    assert chain_command.main(["sh", "-c", early]) == 0
    assert chain_command.main(["sh", "-c", "test -z $RELAY_CHAIN_HEARS", "torchrun"]) == 0
    capfd.readouterr()
    assert chain_command.main(["sh", "-c", note]) == 75
    assert "ended with status 0, and had stopped after step 3: let SystemExit pass" in capfd.readouterr().err


@pytest.mark.slow
def test_the_wheel_holds_the_folder_and_the_command(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(CHAIN)]
    done = subprocess.run(build, capture_output=True, text=True)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no package index here")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("torch_relay_chain-*.whl")
    shutil.unpack_archive(wheel, tmp_path / "in", "zip")
    assert {path.name for path in (tmp_path / "in/relay/chain").iterdir()} == {
        path.name for path in CHAIN.iterdir() if path.suffix == ".py" or path.name == "py.typed"
    }
    assert "relay-chain = relay.chain.command:main" in next((tmp_path / "in").glob("*/entry_points.txt")).read_text()
    assert not (tmp_path / "in/relay/__init__.py").exists()  # Torch Relay's own would be hidden
