"""Processes whose launcher is killed end with it, and what an attempt leaves behind touches no later one."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import psutil
import pytest

from chain_runs import DDP, Bench, finish, wait_until
from checkpointed import Checkpoints, Training, filled, names
from hooked import Hook, interpreter
from living import words
from relay.base.ending import INTERRUPTED
from relay.base.errors import PeerFailed
from relay.base.lifeline import LAUNCHER
from relay.process.ranks import TIMEOUT
from relay.run_folder import alive, faults

SCRIPTS = Path(__file__).parents[1] / "scripts"
SOON_SECONDS = 30.0  # an orphan that waits for its peers waits ten times as long


@pytest.mark.slow
def test_ranks_whose_launcher_is_killed_before_they_have_joined_end_at_once(bench: Bench) -> None:
    """The one that is stopped there, and the one that waits for it; the next attempt then finds the place free."""
    assert TIMEOUT.total_seconds() >= SOON_SECONDS * 10
    chain = bench.chain("results", total_steps=6, **DDP)
    anew = {"OMP_PROC_BIND": "false"}  # torchrun's ranks are new processes, and no forks of it
    hook = Hook("relay.process.cpus", str(bench.folder / "stopped"), "SIGSTOP", rank=1)
    python = interpreter(bench.folder / "python")
    job = chain.begin(python=python, **hook.environment(), **anew)
    wait_until(hook.happened, job)
    stopped = psutil.Process(hook.pid())
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, job)
    above = stopped.parent()
    ranks = [child for child in above.children() if "resource_tracker" not in " ".join(words(child))]
    assert len(ranks) == 2
    above.kill()
    stopped.send_signal(signal.SIGCONT)
    _, alive = psutil.wait_procs(ranks, timeout=SOON_SECONDS)
    assert alive == []
    ended = finish(job)
    assert ended.status in (75, -signal.SIGKILL), ended.errors
    assert list(chain.work.glob("fault*")) == []


def test_a_rank_whose_launcher_is_gone_ends_before_it_begins() -> None:
    program = "from relay.base import lifeline; lifeline.follow_launcher()"
    for launcher, status in ((os.getpid(), 0), (1, INTERRUPTED)):
        named = {"PYTHONPATH": str(SCRIPTS), LAUNCHER: str(launcher)}
        assert subprocess.run([sys.executable, "-c", program], env=named, check=False).returncode == status


def recorded(work: Path, rank: int) -> None:
    """A fault of this process's attempt, as an orphan writes it when nobody has come to join it."""
    with mock.patch.dict(os.environ, {"RANK": str(rank)}):
        faults.record(work, PeerFailed("nobody came"), rank)


def test_a_fault_counts_for_its_own_attempt_alone(tmp_path: Path) -> None:
    """For the ranks, which end with a peer, and for the job, which tells it and is not tried again."""
    faults.forget(tmp_path)
    earlier = alive.attempt()
    faults.forget(tmp_path)
    assert alive.attempt() != earlier
    os.environ[alive.ATTEMPT], this = earlier, alive.attempt()
    recorded(tmp_path, 1)
    assert len(faults.of_ranks(tmp_path)) == 1
    os.environ[alive.ATTEMPT] = this
    assert faults.of_ranks(tmp_path) == []
    assert faults.collect(tmp_path) is None
    recorded(tmp_path, 1)
    assert [fault.rank for fault in faults.of_ranks(tmp_path)] == [1]


def test_what_an_orphan_still_writes_gets_into_no_later_one(checkpoints: Checkpoints, training: Training) -> None:
    """Each attempt writes in a folder of its own, also at the same step."""
    alive.begin()
    orphaned = checkpoints.directory / f".partial-{alive.attempt()}-4"
    orphaned.mkdir(parents=True)
    (orphaned / "rank-0.pt").write_bytes(b"half")
    alive.begin()
    filled(checkpoints, training, 4)
    assert (orphaned / "rank-0.pt").read_bytes() == b"half"
    assert names(checkpoints) == [orphaned.name, "step-4"]
    assert checkpoints.resume(training.strategy, 0, 10) == 4
    assert names(checkpoints) == ["step-4"]
