"""Lightning's Trainer and Horovod as strategies: their gates, their chains of segments, and how they end."""

from pathlib import Path
from typing import Any

import pytest
import torch

from chain_results import assert_same, result
from chain_runs import DDP, EACH_STEP, Bench, Chain, finish, wait_until
from gate_runs import FEW_STEPS, Gates
from living import until, words
from own_tasks import OWN, spec
from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.run_folder.faults import Fault
from relay.run_folder.known_faults import Kind
from relay.task.bound import BoundTask
from stacks import provide


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "strategy"), [("horovod", "horovod"), ("lightning", "lightning_ddp")])
def test_the_gate_finds_it_equivalent(gates: Gates, stack: str, strategy: str) -> None:
    provide(stack)
    verdict = gates.verdict(strategy, 2, steps=FEW_STEPS)
    assert verdict["equivalent"], verdict["problems"]


# Horovod's parts

LENET = str(OWN / "lenet_random.py")


def _starts(ranks: Ranks, folder: Path) -> None:
    # Another seed, so other parameters, on each rank.
    task = BoundTask(spec(LENET), ranks.rank, "fp32", 10, 10, folder=Path())
    strategy = strategies.load("horovod")(task, ranks, 8, {})
    torch.save(strategy.model.state_dict(), folder / f"rank-{ranks.rank}.pt")


@pytest.mark.slow
def test_all_processes_start_with_the_parameters_of_rank_0(tmp_path: Path) -> None:
    provide("horovod")  # for the tests' own forks, too
    spawned(_starts, 2, tmp_path)
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2))
    own = BoundTask(spec(LENET), 0, "fp32", 10, 10).model().state_dict()
    assert_same([first, second], [own, own])


# The chain of segments: one process gets a signal in the middle of a training.
#
# Dropout draws masks: a step that was replayed, or a batch that was skipped, would show.


STEPS, CUT = 8, 5  # an epoch has more
STOPPED = """pass

    def train_steps(self, batches):
        for step, loss in enumerate(super().train_steps(batches), 1):
            if step == {cut} and self.ranks.rank == 1 and not Path({flag!r}).exists():
                Path({flag!r}).touch()
                os.kill(os.getpid(), signal.{signal})
            time.sleep({pause})
            yield loss

    def train_step(self, batch):
        pass"""


def begun(
    bench: Bench, base: str, name: str, number: str = "SIG_IGN", *, cut: int = 0, pause: float = 0.0, **values: Any
) -> Chain:
    """A run on two processes of a strategy; the second process gets a signal once, after `cut` steps."""
    stopped = STOPPED.format(cut=cut, signal=number, pause=pause, flag=str(bench.folder / f"{name} stopped"))
    strategy = bench.strategy(name, stopped, base=base, imports=f"import signal\n{EACH_STEP}")
    return bench.chain(name, **(DDP | strategy | {"total_steps": STEPS} | values))


def cut_short(cut: Chain, uncut: Chain, told: str) -> None:
    """Cut in the middle, it ends bit for bit as uncut."""
    ended = cut.forked()
    assert ended.status == 75, ended.errors
    assert told in ended.errors
    ended = cut.forked(attempt=2)
    assert ended.status == 0, ended.errors
    assert 0 == cut.started_at()[0] < cut.started_at()[1] <= CUT
    assert_same(result(cut), result(uncut))


IN_TIME = f"stopped at step {CUT} of {STEPS}"


@pytest.mark.slow
def test_horovod_cut_short_ends_bit_for_bit_as_uncut(bench: Bench) -> None:
    provide("horovod")
    uncut = begun(bench, "horovod", "uncut", stack="horovod").train(forked=True)
    cut_short(begun(bench, "horovod", "cut", "SIGTERM", cut=CUT, stack="horovod"), uncut, IN_TIME)


@pytest.mark.long
def test_lightning_cut_short_ends_bit_for_bit_as_uncut(bench: Bench) -> None:
    """No other test cuts Lightning short, or has it keep its own checkpoint beside the run's."""
    provide("lightning")
    options = dict(strategies.load("lightning_ddp").requirements.options) | {"model_checkpoint": True}
    uncut = begun(bench, "lightning_ddp", "uncut", options=options).train(forked=True)
    weights = torch.load(uncut.work / f"step-{STEPS}" / "strategy" / "lightning.ckpt", weights_only=True)["state_dict"]
    ours = result(uncut)["state"]["model"]
    assert set(weights) == {f"network.{name}" for name in ours}
    assert_same({name: weights[f"network.{name}"] for name in ours}, ours)
    for number, told in (("SIGTERM", IN_TIME), ("SIGKILL", "status -9")):
        cut_short(begun(bench, "lightning_ddp", number.lower(), number, cut=CUT, options=options), uncut, told)


# How Horovod's processes end


def test_horovods_own_words_on_a_lost_peer_are_no_fault() -> None:
    """Which of them a process gets depends on what it was waiting for."""
    told = "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce"
    assert Fault.of(RuntimeError(told)).is_a(Kind.LOST_PEER)
    mismatch = "Mismatched allreduce tensor shapes: One rank sent a tensor of shape [2]"
    assert not Fault.of(RuntimeError(mismatch)).is_a(Kind.LOST_PEER)


@pytest.mark.long
def test_a_killed_horovodrun_leaves_no_process(bench: Bench) -> None:
    """Only this kills horovodrun."""
    provide("horovod")
    long = begun(bench, "horovod", "long", total_steps=4000, pause=0.02, stack="horovod", launcher="horovodrun")
    job = long.begin()
    wait_until(long.checkpoints, job)
    (runner,) = [p for p in bench.processes() if words(p)[1:4] == ["-m", "relay.launch.node", "horovodrun"]]
    runner.kill()
    assert finish(job).status == 75
    until(lambda: not bench.processes(), "no process is left")
