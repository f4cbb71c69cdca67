"""A run cut anywhere, any number of times, ends as an uncut one; and what goes wrong is told once, in one line."""

import os
import re
import signal
import time
from typing import Any

import pytest

from chain_results import assert_same, result
from chain_runs import DDP, Bench, finish, wait_until
from relay.base import lock
from relay.base.errors import Busy
from relay.base.files import read_json
from relay.training import job as training_job
from relay.training.summary import summarise

pytestmark = pytest.mark.slow

# Slow enough to be cut in the middle, without keeping a CPU busy.
SLOWLY = "time.sleep(0.05)"


# Cut and gone on


def test_two_segments_are_one_long_run(bench: Bench) -> None:
    """Bit for bit; and the code is that of the first one, whatever was edited since."""
    strategy = bench.strategy("edited")
    chain, whole = (bench.chain(name, **strategy) for name in ("segments", "whole"))
    whole.train(forked=True)
    for first, last in ((0, 17), (17, 60)):
        ended = chain.segment(first, last)
        assert ended.status == 0, ended.errors
        state = read_json(chain.declared / f"step-{last}.json")
        assert (state["run"], state["step"], state["generation"]) == (chain.run.id, last, "first")
        bench.strategy("edited", "raise RuntimeError('the code of today')")
    assert chain.started_at() == [0, 17]
    assert_same(result(chain), result(whole))


def test_a_job_that_finds_nothing_left_to_train_counts_in_no_figure(bench: Bench) -> None:
    """It is forced anew, or Slurm has started it again at the very end. Older checkpoints are gone by then."""
    chain = bench.chain("results", checkpoint_minutes=60)
    segments = ((0, 20), (20, 40), (40, 60))
    last = chain.work / "records" / "attempt-0003.jsonl"
    for killed in (False, True):
        if killed:
            last.write_text("".join(line for line in last.open() if '"end"' not in line))
        assert [chain.forked(*each).status for each in segments] == [0, 0, 0]
        before = summarise(chain.run, chain.work)
        assert [chain.forked(*each).status for each in segments] == [0, 0, 0]
        assert summarise(chain.run, chain.work) == before
        assert (before.attempts, chain.checkpoints(), chain.started_at()) == (3, [40, 60], [0, 20, 40])


def test_a_signal_saves_and_the_retry_goes_on(bench: Bench) -> None:
    """To every process of the job, as `scancel --full` and a preemption do; with workers that load data."""
    loader: dict[str, Any] = {"loader": "dataloader", "data_workers": 1}
    chain = bench.chain("results", **(DDP | loader | bench.strategy("slow", SLOWLY, base="ddp")))
    job = chain.begin()
    wait_until(chain.checkpoints, job)
    for process in bench.processes():  # torchrun's trainers and the loaders' workers are in groups of their own
        process.send_signal(signal.SIGTERM)
    ended = finish(job)
    assert ended.status == 75, ended.errors
    assert "SIGTERM" in ended.errors
    saved = chain.checkpoints()[-1]
    assert f"stopped at step {saved} of 60" in ended.errors
    assert not (chain.declared / "step-60.json").exists()
    ended = chain.forked(attempt=2)
    assert ended.status == 0, ended.errors
    assert chain.started_at() == [0, saved]
    assert summarise(chain.run, chain.work).losses.steps == list(range(1, 61))


def test_the_end_of_the_job_is_seen_coming(bench: Bench) -> None:
    """Slurm tells it: saved and stopped before, worth a retry."""
    chain = bench.chain("results", total_steps=1000, evaluate_every_steps=1000, **bench.strategy("slow", SLOWLY))
    end = time.time() + 30  # a busy machine takes half of it to start the processes
    ended = chain.segment(SLURM_JOB_END_TIME=str(int(end)))
    assert time.time() < end
    assert ended.status == 75, ended.errors
    (saved, *_) = reversed(chain.checkpoints())
    assert f"stopped at step {saved} of 1000 (the job's time is nearly over)" in ended.errors


# What a chain goes on with


def test_a_second_job_of_the_run_says_that_another_one_trains_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm may have a job twice. The second one leaves the first one's chain alone, and is worth a retry."""
    chain = bench.chain("results")
    assert chain.forked(0, 20).status == 0
    monkeypatch.setattr("relay.chain.files.WAIT_SECONDS", 0.0)
    told = rf"results/checkpoints/{chain.run.id}: another job already trains this run \(process {os.getpid()} on \S+\)"
    with lock.exclusive(chain.work):
        with pytest.raises(Busy, match=told):
            chain.forked()
        assert len(read_json(chain.work / "chain.json")["attempts"]) == 1
        monkeypatch.setattr(training_job, "wait_until_free", lambda *_: None)  # both have begun at the same moment
        ended = chain.forked()
        assert ended.status == 75
        assert re.search(told, ended.errors)
        assert "out of memory" not in ended.errors
    assert not (chain.work / "fault.json").exists()


def test_records_are_on_the_disk_before_the_checkpoint_that_goes_on_from_them(bench: Bench) -> None:
    """Killed within a save, whatever it has finished: no step, loss or evaluation between the attempts is missing."""
    kill = "import os, signal; from pathlib import Path; import relay.chain.saving as c; whole = c.Saver.finish"
    patch = (
        "def finish(self):\n"
        "    saving = self.writing\n"
        "    whole(self)\n"
        "    if saving and self.begun == 60 and not Path(FLAG).exists():\n"
        "        Path(FLAG).touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "c.Saver.finish = finish"
    )
    flag = f"FLAG = {str(bench.folder / 'killed')!r}"
    strategy = bench.strategy("killed", imports=f"{kill}\n{flag}\n{patch}")
    chain = bench.chain("results", checkpoint_minutes=60, evaluate_every_steps=10, **strategy)
    ended = chain.forked()
    assert ended.status == 75, ended.errors
    assert chain.checkpoints() == [60]
    ended = chain.forked(attempt=2)
    assert ended.status == 0, ended.errors
    summary = summarise(chain.run, chain.work)
    assert summary.losses.steps == list(range(1, 61))
    assert [e["step"] for e in summary.evaluations] == [10, 20, 30, 40, 50, 60]
