"""Horovod as a strategy: its gate, its checkpoints, and its words on a lost peer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import debian_packages
from chain_results import assert_same, result
from chain_runs import Bench, finish, wait_until
from gate_runs import FEW_STEPS, Gates
from library_runs import CUT, STEPS, begun
from living import until, words
from own_tasks import OWN, spec
from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.run_folder.known_faults import Kind, is_a
from relay.task.bound import BoundTask
from stacks import provide

pytest_plugins = ["chain_runs"]
pytestmark = pytest.mark.usefixtures("horovod", "one_thread")


@pytest.fixture(scope="module")
def horovod() -> Path:
    """The stack's interpreter; the tests' own forks see its packages, too."""
    debian_packages.require()
    return provide("horovod")


# The gate


@pytest.mark.slow
def test_the_gate_finds_it_equivalent(gates: Gates) -> None:
    verdict = gates.verdict("horovod", 2, steps=FEW_STEPS)
    assert verdict["equivalent"], verdict["problems"]


# Its parts

LENET = str(OWN / "lenet_random.py")


def _starts(ranks: Ranks, folder: Path) -> None:
    # Another seed, so other parameters, on each rank.
    task = BoundTask(spec(LENET), ranks.rank, "fp32", 10, 10, folder=Path())
    strategy = strategies.load("horovod")(task, ranks, 8, {})
    torch.save(strategy.model.state_dict(), folder / f"rank-{ranks.rank}.pt")


@pytest.mark.slow
def test_all_processes_start_with_the_parameters_of_rank_0(tmp_path: Path) -> None:
    spawned(_starts, 2, tmp_path)
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    own = BoundTask(spec(LENET), 0, "fp32", 10, 10).model().state_dict()
    for name, tensor in own.items():
        assert torch.equal(first[name], tensor), name
        assert torch.equal(second[name], tensor), name


# The chain of segments

STRATEGY = "horovod.Horovod"


@pytest.mark.slow
def test_cut_short_it_ends_bit_for_bit_as_uncut(bench: Bench) -> None:
    """Dropout draws masks: a step that was replayed, or a batch that was skipped, would show."""
    uncut = result(begun(bench, STRATEGY, "uncut", stack="horovod").train(forked=True))
    cut = begun(bench, STRATEGY, "cut", "SIGTERM", cut=CUT, stack="horovod")
    ended = cut.forked()
    assert ended.status == 75, ended.errors
    assert f"stopped at step {CUT} of {STEPS}" in ended.errors
    assert cut.forked(attempt=2).status == 0
    assert cut.started_at() == [0, CUT]
    assert_same(result(cut), uncut)


# How its processes end


def test_horovods_own_words_on_a_lost_peer_are_no_fault() -> None:
    """Which of them a process gets depends on what it was waiting for."""
    told = "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce"
    assert is_a(Kind.LOST_PEER, RuntimeError(told))
    mismatch = "Mismatched allreduce tensor shapes: One rank sent a tensor of shape [2]"
    assert not is_a(Kind.LOST_PEER, RuntimeError(mismatch))


@pytest.mark.long
def test_a_killed_horovodrun_leaves_no_process(bench: Bench) -> None:
    """Only this kills horovodrun."""
    long = begun(bench, STRATEGY, "long", total_steps=4000, pause=0.02, stack="horovod", launcher="horovodrun")
    job = long.begin()
    wait_until(long.checkpoints, job)
    (runner,) = [p for p in bench.processes() if words(p)[1:4] == ["-m", "relay.launch.node", "horovodrun"]]
    runner.kill()
    assert finish(job).status == 75
    until(lambda: not bench.processes(), "no process is left")
