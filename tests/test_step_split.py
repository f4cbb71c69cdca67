"""What a step's time goes to: planted waits are found where they were planted, and nothing that is trained changes."""

from typing import Any

import pytest

from chain_runs import Bench
from own_tasks import spec
from relay.run_folder import attempts
from relay.training.observed_gpu import Traced, parts
from relay.training.step_split import FILE, PARTS, StepSplit
from relay.training.summary import summarise

SLOW_LOADER = """
from relay.task import data

quick = data.Resident.raws


def slow(self, lists):
    for batch in quick(self, lists):
        time.sleep(0.02)
        yield batch


data.Resident.raws = slow
"""
SLOW_OPTIMIZER = """
import torch
from relay.tasks._lenet import LeNet


class Slow(torch.optim.SGD):
    def step(self, *given):
        time.sleep(0.02)
        return super().step(*given)


LeNet.optimizer = lambda self, parameters: Slow(parameters, self.learning_rate, momentum=0.9)
"""
BUSY = """
        end = time.thread_time() + 0.02 * self.ranks.rank
        while time.thread_time() < end:
            pass
"""
SHORT = {"total_steps": 62, "evaluate_every_steps": 62, "warmup_steps": 0, "checkpoint_minutes": 60.0}
PAIR = {"devices_per_node": 2, "launcher": "torchrun"}


def seen(bench: Bench, planted: str, before: str = "pass", *, imports: str = "", **values: Any) -> StepSplit:
    """What is seen of a strategy in which something was planted; all of its steps' time is in some part."""
    base = "ddp" if "launcher" in values else "cpu"
    own = bench.strategy(planted, before, imports=imports, base=base)
    chain = bench.chain(f"results-{planted}", spec("lenet-digits"), **SHORT, **own, **values).train(forked=True)
    found = StepSplit.read(chain.work)
    assert (found.first, found.last) == (56, 62)
    assert sum(found.fractions().values()) == pytest.approx(1)
    return found


@pytest.mark.slow
def test_a_loader_and_an_optimizer_that_sleep_are_told_apart(bench: Bench) -> None:
    (rank,) = seen(bench, "slow", imports=SLOW_LOADER + SLOW_OPTIMIZER).ranks
    assert rank["data"] >= 0.02
    assert rank["optimizer"] >= 0.02
    assert rank["communication"] == 0, "it is alone"


@pytest.mark.slow
def test_who_is_quick_waits_for_who_computes(bench: Bench) -> None:
    quick, busy = seen(bench, "busy", BUSY, **PAIR).ranks
    assert quick["communication"] >= 0.015
    assert busy["compute"] >= 0.02
    assert busy["communication"] < quick["communication"]


@pytest.mark.slow
def test_steps_that_are_observed_are_not_timed_and_compute_the_same(bench: Bench) -> None:
    observed = bench.chain("results", **SHORT).train(forked=True)
    plain = observed.planned("plain", **SHORT, observed_steps=0).train(forked=True)
    assert attempts.read(observed.work, 1).losses == attempts.read(plain.work, 1).losses
    with_it, without_it = (summarise(chain.run, chain.work) for chain in (observed, plain))
    assert (with_it.measured_steps, without_it.measured_steps) == (56, 62)
    assert with_it.test_loss == without_it.test_loss
    assert sum(getattr(with_it, f"step_{part}_fraction") for part in PARTS) == pytest.approx(1, abs=1e-3)
    assert with_it.observed_step_ratio
    assert without_it.step_data_fraction is None
    assert not (plain.work / FILE).exists()


MADE_UP = [
    Traced("sgemm", 0, 1, 4),
    Traced("ncclDevKernel_AllReduce_Sum_f32", 0, 3, 6),  # from 3 to 4 behind the product
    Traced("elementwise", 0, 7, 8),
    Traced("Optimizer.step#SGD.step", 0, 7, 9),  # an annotation, over the kernel within and a gap
    Traced("Optimizer.step#SGD.step", None, 2, 3),
    Traced("dgemm", 0, 6.5, 6.2),  # the clock was set back
]


def test_a_gpus_time_is_told_apart_by_its_kernels() -> None:
    """A made-up trace of 10 seconds: no GPU was ever traced (docs/untested.md)."""
    assert parts(MADE_UP, [(0, 0.5)], (0, 10)) == pytest.approx(
        {"data": 0.5, "compute": 3, "communication": 2, "optimizer": 1, "idle": 3.5}
    )
