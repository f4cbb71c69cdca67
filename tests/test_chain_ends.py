"""`relay.chain` where something waits for ever, or where the next job could not go on: it ends, and says why."""

import ctypes
import json
import multiprocessing
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from chain_here import fitted
from chain_results import assert_same
from living import LONGEST_SECONDS
from relay.chain import ChainError, loader, reached, resume, signals, state, telling, things
from relay.chain.peers import Peers
from relay.chain.signals import SIGNALS, Interruption
from relay.chain.telling import VARIABLES

pytestmark = pytest.mark.usefixtures("in_a_script")


def wait_for_ever() -> None:
    """In C, as a collective does: no handler of Python's runs meanwhile."""
    lock, libc = (ctypes.c_char * 64)(), ctypes.CDLL(None)
    while True:
        libc.pthread_mutex_lock(lock)


def after_a_signal() -> Interruption:
    """What was told to end by a signal."""
    os.kill(os.getpid(), signal.SIGTERM)
    return Interruption(saved=lambda: 7)


def before_the_end() -> Interruption:
    """What was told to end by the clock."""
    return Interruption(end_time=time.time() + signals.SPARE_SECONDS + 0.2, margin_seconds=60.0, saved=lambda: 0)


@pytest.mark.parametrize(("told", "saved", "which"), [(after_a_signal, 7, "step 7"), (before_the_end, 0, "no step")])
def test_what_was_told_to_end_ends_in_time_whatever_it_waits_for(told, saved, which, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(signals, "LAST_SECONDS", 0.2)
    monkeypatch.setenv(telling.NOTE, str(tmp_path / "note"))
    if (child := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        watched = told()
        watched.margin_seconds = 0.1 if watched.end_time is None else watched.margin_seconds
        watched.watch()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        wait_for_ever()
    process = psutil.Process(child)
    try:
        assert process.wait(LONGEST_SECONDS) == 75
    except psutil.TimeoutExpired:
        process.kill()
        raise
    said = capfd.readouterr().err
    assert "in wait_for_ever" in said
    assert re.search(r"relay.chain: ends now: it was told to end \d+ s ago \(", said)
    assert f"; {which} is saved\n" in said
    assert json.loads((tmp_path / "note").read_text())["step"] == saved


def validates(watched: Interruption) -> None:
    """It was told of the job's end long before it, in no step."""
    watched.end_time = time.time() + 60


def validates_under_relay_chain(watched: Interruption) -> None:
    """The same, where `relay-chain` has made SIGTERM of SIGUSR1."""
    validates(watched)
    telling.announce_early(Path(os.environ[telling.NOTE]))


@pytest.mark.parametrize(
    ("told", "does"),
    [
        ("TERM", lambda watched: setattr(watched, "saving", lambda: True)),
        ("USR1", validates),
        ("TERM", validates_under_relay_chain),
        ("USR1", Interruption.end),  # and an evaluation follows
    ],
)
def test_a_save_a_validation_and_what_follows_the_training_are_waited_for(told, does, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(telling.NOTE, str(tmp_path / "note"))
    monkeypatch.setattr(signals, "LAST_SECONDS", 0.2)
    monkeypatch.setattr(signals, "_LOOK_SECONDS", 0.05)
    if (child := os.fork()) == 0:
        watched = Interruption(margin_seconds=0.1)
        watched.watch()
        does(watched)
        os.kill(os.getpid(), signal.Signals[f"SIG{told}"])
        time.sleep(0.6)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_node_that_was_suspended_waits_no_longer_than_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monotonic clock stood still meanwhile."""
    began, naps = time.time(), list[float]()

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        assert len(naps) < 3

    suspended = SimpleNamespace(time=lambda: began + 1000 * len(naps), monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(signals, "time", suspended)
    Interruption(end_time=began + 500)._wait(time.monotonic(), "SIGUSR1")
    assert len(naps) == 1


@dataclass
class Slow:
    """Samples of which the later ones do not come for a while."""

    seconds: float

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds * (index > 2))
        return index


@pytest.mark.usefixtures("kept")
def test_a_signal_to_all_of_a_jobs_processes_ends_no_data_worker() -> None:
    """Slurm sends it to all. The step at which the ranks agree to stop still needs its batch."""
    run = resume(model=nn.Linear(1, 1))
    seen = []
    for step, batch in run.steps(DataLoader(Slow(0.1), num_workers=1)):
        # Not all children of this process: some are other tests'.
        for worker in multiprocessing.active_children() if step == 1 else ():
            for number in SIGNALS:
                psutil.Process(worker.pid).send_signal(number)
        seen.append(int(batch))
        run.after(step)
    assert seen == [*range(6)]


@pytest.mark.usefixtures("kept")
def test_a_fork_of_the_script_ends_by_a_signal_and_keeps_no_job_out_of_the_folder() -> None:
    """It had the training's handlers and its lock. multiprocessing waits for ever for what it has told to end."""
    run = resume(model=nn.Linear(1, 1))
    helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=[LONGEST_SECONDS])
    helper.start()
    try:
        run._lock.close()  # as at the end of this process
        assert resume(model=nn.Linear(1, 1)).step == 0
        helper.terminate()
        helper.join(20)
        assert helper.exitcode == -signal.SIGTERM
    finally:
        helper.kill()


@pytest.mark.usefixtures("kept")
def test_data_workers_that_say_nothing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "SILENT_SECONDS", 0.3)
    run = resume(model=nn.Linear(1, 1))
    with pytest.raises(ChainError, match=r"DataLoader timed out after 0\.3 seconds: the data workers say nothing"):
        list(run.steps(DataLoader(Slow(1.0), num_workers=1)))


@pytest.mark.usefixtures("kept")
def test_the_first_checkpoint_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job would find it too late. Rank 0 alone reads what is alike for all."""
    monkeypatch.setattr(state, "_check_readable", lambda *_: None)  # it does not see an optimizer's state, for one
    state_of = {"weights": torch.zeros(2**19), "since": time.localtime()}
    large = SimpleNamespace(state_dict=lambda: state_of, load_state_dict=lambda _: None)
    run = resume(model=nn.Linear(1, 1), ema=large)
    with pytest.raises(ChainError, match=r"step-3/replicated\.pt cannot be read by weights_only: time.struct_time"):
        list(run.steps(range(1, 4)))
    run._lock.close()
    place = Path("checkpoints/step-3")
    (place / "rank-0.pt").rename(place / "rank-1.pt")
    monkeypatch.setattr(things, "damage", lambda *_: None)
    run._content.ranks = Peers(rank=1)
    run._content._prove(place)


def trained(layers: nn.Sequential, *, stop: int | None = None, again: bool = False) -> list[torch.Tensor]:
    """The weights after a job of a training that unfreezes a layer at step 9; `again` it looks how far it has come."""
    optimizer = torch.optim.AdamW(layers[0].parameters(), lr=0.05)

    def unfreeze() -> None:
        optimizer.add_param_group({"params": [*layers[1].parameters()], "lr": 0.01})

    if again and reached() >= 9:
        unfreeze()
    run = resume(model=layers, optimizer=optimizer)
    return fitted(run, layers, optimizer, 16, stop, before=lambda step: unfreeze() if step == 9 else None)


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_layers_that_were_unfrozen_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    uncut = trained(layers())
    (tmp_path / "cut").mkdir()
    monkeypatch.chdir(tmp_path / "cut")
    assert reached() == 0
    trained(layers(), stop=12)
    with pytest.raises(ChainError, match=r"model\.1\.weight, model\.1\.bias: trained there, .* before resume, where"):
        trained(layers())
    assert_same(trained(layers(), again=True), uncut)


@pytest.mark.parametrize(("rank", "size"), VARIABLES)
def test_ranks_without_a_process_group_are_stopped_with_a_line(rank, size, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would take itself for the only one, and wait for the others' folder."""
    monkeypatch.setenv(rank, "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")  # of a batch script's job
    assert Peers.meet().world_size == 1
    monkeypatch.setenv(size, "2")
    with pytest.raises(ChainError, match=rf"{size} is 2, and there is no process group; call init_process_group"):
        Peers.meet()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Peers.meet().world_size == 1
