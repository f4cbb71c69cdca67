"""One process's failure is the end of all of them, soon and with its own reason, wherever the others wait."""

import re
import time

import pytest

from chain_runs import DDP, Bench
from relay.base.ending import INTERRUPTED
from relay.run_folder.together import GRACE_SECONDS

pytestmark = pytest.mark.slow

# Each waits for the other: rank 1's end breaks neither connection. So a stage waits for one that waits for another.
FOR_EACH_OTHER = """if self.steps == 3:
            if self.ranks.rank == 1:
                raise ArithmeticError('as planted')
            dist.recv(torch.zeros(1), src=2 - self.ranks.rank)"""
IMPORTS = "import torch\nimport torch.distributed as dist"


def test_one_ranks_failure_ends_all_within_a_minute_with_its_traceback(bench: Bench) -> None:
    strategy = bench.strategy("faulty", FOR_EACH_OTHER, base="ddp", imports=IMPORTS)
    chain = bench.chain("results", devices_per_node=3, launcher="direct", **strategy)
    ended = chain.segment()
    fault = chain.fault()
    assert time.time() - fault["time"] < 60
    assert bench.processes() == []
    assert ended.status == 1
    assert (fault["rank"], fault["error"]) == (1, "ArithmeticError: as planted")
    assert "in train_step" in fault["traceback"]
    assert time.time() - fault["time"] > GRACE_SECONDS  # nothing else could have ended them
    for rank in (0, 2):
        assert f"rank {rank} ends with rank 1: ArithmeticError: as planted" in ended.errors
    # Its traceback is the first one and the last one of the log; what the others saw hides neither.
    tracebacks = ended.errors.split("Traceback (most recent call last):\n")[1:]
    for text in (tracebacks[0], tracebacks[-1]):
        assert "in train_step" in text
        assert "ArithmeticError: as planted" in text
    assert ended.errors.splitlines()[-1] == f"run run-1 failed: {fault['error']} (rank {fault['rank']})"
    assert "closed by peer" not in ended.errors


KILLED = """mark = Path(f"{mark}-{{self.ranks.rank}}")
        if self.steps == 30 and not mark.exists():
            mark.touch()
            if self.ranks.rank == 1:
                os.kill(os.getpid(), 9)
            time.sleep(300)"""


def test_a_killed_rank_ends_those_that_do_not_notice_and_the_run_goes_on(bench: Bench) -> None:
    """Where they wait for it in NCCL, nothing else would tell them for minutes."""
    killed = KILLED.format(mark=str(bench.folder / "mark"))
    strategy = bench.strategy("killed", killed, base="ddp", imports="import os\nfrom pathlib import Path")
    chain = bench.chain("results", **(DDP | {"launcher": "torchrun"} | strategy))
    began = time.time()
    ended = chain.segment()
    assert time.time() - began < 240  # rank 0 would sleep for longer
    assert ended.status == INTERRUPTED
    assert "rank 0 ends with rank 1: PeerFailed: its process is gone, without a word" in ended.errors
    assert not (chain.work / "fault.json").exists()
    assert chain.forked().status == 0
    assert not [*chain.work.glob("alive-*")]


NOT_TO_COME = """if self.steps == 1:
            self.hurried = dist.new_group(timeout=timedelta(seconds=2))
        if self.steps == 3:
            if self.ranks.rank == 1:
                time.sleep(100)
            dist.all_reduce(torch.zeros(1), group=self.hurried)"""


def test_a_rank_that_does_not_come_to_a_collective_is_a_fault_that_says_where_both_were(bench: Bench) -> None:
    """Nobody was killed: another try would wait as long for the same."""
    strategy = bench.strategy("hangs", NOT_TO_COME, base="ddp", imports=f"{IMPORTS}\nfrom datetime import timedelta")
    chain = bench.chain("results", checkpoint_minutes=60.0, **(DDP | strategy))
    ended = chain.segment()
    assert ended.status == 1
    assert "Timed out waiting 2000ms for" in chain.fault()["error"]
    assert ended.errors.splitlines()[-1] == f"run run-1 failed: {chain.fault()['error']} (rank 0)"
    _, first, second = ended.errors.split(" was here:\n")
    assert "dist.all_reduce(torch.zeros(1), group=self.hurried)" in first
    assert "time.sleep(100)" in second
    assert bench.processes() == []


def test_a_part_of_a_checkpoint_that_cannot_be_written_ends_all_with_the_reason_of_its_rank(bench: Bench) -> None:
    """Though it failed in the background, on one rank alone, and no other rank waits for it there.

    The first time it is a warning.
    """
    save = """pass

    def save(self, directory):
        if self.ranks.rank == 1:
            (directory.parent / 'rank-1.pt').mkdir(parents=True)  # where a file should be
        return super().save(directory)

    def train_step(self, batch):
        time.sleep(0.05)"""
    strategy = bench.strategy("unwritable", save, base="ddp")
    chain = bench.chain("results", total_steps=600, **(DDP | strategy))
    ended = chain.segment()
    fault = chain.fault()
    assert ended.status == 1
    assert fault["rank"] == 1
    assert "could not be saved: " in fault["error"]
    assert "Is a directory" in fault["error"]
    assert re.search(r"warning: the checkpoint of step \d+ could not be saved: .* \(rank 1\)", ended.output)
    assert time.time() - fault["time"] < 60
    assert chain.checkpoints() == []


# A training whose loss is no number, or infinite, has failed: it ends with the reason, and is never `best`

NAN_FROM_STEP_4 = "if self.steps == 4:\n            next(self.model.parameters()).data.fill_(float('nan'))"


def test_a_loss_that_is_no_number_ends_the_run_with_its_step(bench: Bench) -> None:
    chain = bench.chain("results", total_steps=6, **bench.strategy("mine", NAN_FROM_STEP_4))
    ended = chain.forked()
    assert ended.status == 1
    fault = chain.fault()
    assert fault["error"].startswith("the training loss of step 4 is nan: the training diverged; try a smaller `")
    assert fault["kind"] == "Diverged"
    assert fault["mistake"] is True  # no traceback, and no retry
    assert all(step < 4 for step in chain.checkpoints())  # nothing is saved that cannot be used
    again = chain.forked(attempt=2)
    assert again.status == 1
    assert "not tried again" in again.errors


# A run that computes in more threads than are declared has no speed of its own


def test_a_strategy_that_takes_more_threads_than_declared_is_a_fault(bench: Bench) -> None:
    more = bench.strategy("more", "torch.set_num_threads(3)", imports="import torch")
    chain = bench.chain("results", total_steps=4, **more)
    assert chain.forked().status == 1
    assert chain.fault()["error"].startswith("run run-1: it computes in 3 threads, and threads is 1; leave torch.set")


# What a strategy of one's own can have wrong: each is told with its place, once


def test_a_process_that_ends_itself_is_a_fault_and_no_lost_node(bench: Bench) -> None:
    ends = "if self.steps == 2 and self.ranks.rank == 0:\n            os._exit(0)"
    chain = bench.chain("results", total_steps=6, **(DDP | bench.strategy("mine", ends, base="ddp")))
    assert chain.forked().status == 1
    told = "EndedItself: os._exit(0) was called in the middle of the work; return, or raise an error"
    assert chain.fault()["error"] == told
    assert "in train_step" in chain.fault()["traceback"]
    assert not (chain.declared / "step-6.json").exists()
