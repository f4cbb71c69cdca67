"""A step as one CUDA graph, on pretended GPUs: what is captured, what it computes, and where it is left alone."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pretended_gpu
from chain_runs import DIGITS, DROPOUT, Bench
from gate_runs import FEW_STEPS, Gates
from own_tasks import bound, data_of
from preloaded import spawned
from relay import strategies
from relay.chain.peers import Agreement
from relay.chain.signals import Interruption
from relay.process.generators import seed_generators
from relay.process.ranks import Ranks
from relay.run_folder import attempts
from relay.spec.tasks import TaskSpec
from relay.strategies._captured import Captured
from relay.task.bound import BoundTask
from relay.task.data import Feeder, Resident, Streamed
from relay.task.split import Split, chosen
from relay.training.summary import kept_losses
from sharded import Given
from sharded import bound as in_short
from spot_checked import verdict

pytestmark = pytest.mark.slow
BATCH, STEPS = 16, 8
FIRST = 3  # steps that are trained as ever


def streamed(split: Split, device: torch.device) -> Streamed:
    return Streamed(split, device, 0)


class Trained:
    """A training of `single_gpu`."""

    def __init__(self, ranks: Ranks, task: BoundTask, feeder: Callable[..., Feeder] = Resident) -> None:
        self.strategy = strategies.load("single_gpu")(task, ranks, BATCH, {})
        self.feeder = feeder(task.split("train"), ranks.device)
        self.captured = Captured(self.strategy, self.feeder.ready)
        seed_generators(5, ranks.devices)

    def losses(self, *, captured: bool, sizes: Sequence[int]) -> list[float]:
        """Of steps with batches of these sizes; the learning rate changes with each."""
        count = len(self.feeder.split)
        which = ((chosen(count, BATCH, 3, step), size) for step, size in enumerate(sizes))
        raws = self.feeder.raws(one._replace(positions=one.positions[:size]) for one, size in which)
        steps = self.captured.train_steps(raws) if captured else self.strategy.train_steps(map(self.feeder.ready, raws))
        found = []
        for step, loss in enumerate(steps):
            found.append(loss)
            self.strategy.set_learning_rate(0.05 / (step + 2))
        return list(torch.stack(found).cpu().tolist())


# What is replayed


ALIKE = (BATCH,) * STEPS
OTHERS = (*ALIKE[:4], 9, BATCH, 9, BATCH)  # batches of another shape are trained as ever, between replays


@pytest.mark.parametrize(
    ("task", "feeder", "sizes"),
    [(DIGITS, streamed, ALIKE), (DROPOUT, Resident, ALIKE), (DROPOUT, Resident, OTHERS)],
    ids=["sgd", "dropout and adadelta", "batches of another shape"],
)
def test_replayed_steps_compute_the_same(prepared: Path, task: Any, feeder: Any, sizes: Sequence[int]) -> None:
    spawned(_alike, 1, captured(task, prepared), feeder, sizes, gpus=1)


def captured(its: TaskSpec, prepared: Path) -> BoundTask:
    return bound(its, "fp32", prepared / data_of(its, prepared).directory_name, captured=True)


def _alike(ranks: Ranks, task: BoundTask, feeder: Callable[..., Feeder], sizes: Sequence[int]) -> None:
    expected = Trained(ranks, task, feeder).losses(captured=False, sizes=sizes)
    made = Trained(ranks, task, feeder)
    assert made.losses(captured=True, sizes=sizes) == pytest.approx(expected, rel=1e-5)
    assert made.captured.record == {"replayed": sizes.count(BATCH) - FIRST, "why_not": ""}
    assert len({*expected}) == STEPS


def test_a_run_of_replayed_steps_goes_on_bit_for_bit_and_passes_its_spot_check(bench: Bench) -> None:
    """With dropout: a checkpoint holds the state of the generator that replays have drawn from."""
    values = {"its": DROPOUT, "strategy": "single_gpu", "device": "cuda", "cuda_graph": True}
    values |= {"total_steps": 16, "evaluate_every_steps": 8}
    uncut, cut = (bench.chain(name, **values) for name in ("uncut", "cut"))
    uncut.train(forked=True)
    for attempt, (first, last) in enumerate([(0, 8), (8, 16)], 1):
        assert (ended := cut.forked(first, last, attempt=attempt)).status == 0, ended.errors
    assert attempts.read(cut.work, 1).end["cuda_graph"] == {"replayed": 8 - FIRST, "why_not": ""}
    assert kept_losses(cut.work) == kept_losses(uncut.work)
    (found,) = verdict(cut)
    assert found["status"] == "passed", found


def test_the_gate_trains_with_replayed_steps(gates: Gates) -> None:
    found = gates.verdict("single_gpu", 1, device="cuda", cuda_graph=True, steps=FEW_STEPS)
    assert found["equivalent"], found["problems"]
    assert [part["name"] for part in found["parts"] if part["trial"] == "replayed"] == ["replayed: losses"]


# What is not


def _waits(task: BoundTask) -> None:
    loss = task.own.loss
    task.own.loss = lambda outputs, batch: loss(outputs, batch) * (1 if outputs.sum().item() else 2)  # type: ignore[method-assign]


def _counts(task: BoundTask) -> None:
    loss = task.own.loss
    task.own.calls = 0  # type: ignore[attr-defined]

    def counted(outputs: Any, batch: Any) -> torch.Tensor:
        task.own.calls += 1  # type: ignore[attr-defined]
        return loss(outputs, batch) / task.own.calls  # type: ignore[attr-defined]

    task.own.loss = counted  # type: ignore[method-assign]


def _remembers(task: BoundTask) -> None:
    """A replay would go on reading where the tensor was when the step was captured."""
    loss = task.own.loss

    def smooth(outputs: Any, batch: Any) -> torch.Tensor:
        now = loss(outputs, batch)
        task.own.before = 0.9 * getattr(task.own, "before", now.detach()) + 0.1 * now.detach()  # type: ignore[attr-defined]
        return now * (1 + task.own.before)  # type: ignore[attr-defined]

    task.own.loss = smooth  # type: ignore[method-assign]


REFUSED = {
    "Python changes the task.calls in every step": _counts,
    "Python changes the task.before in every step": _remembers,
    "it waits for the GPU": _waits,
}


def test_what_a_graph_cannot_repeat_is_trained_as_ever(prepared: Path) -> None:
    spawned(_refused, 1, prepared, gpus=1)


def _refused(ranks: Ranks, prepared: Path) -> None:
    for reason, change in REFUSED.items():
        found = []
        for replays in (False, True):
            task = captured(DROPOUT, prepared)
            change(task)
            made = Trained(ranks, task)
            found.append(made.losses(captured=replays, sizes=ALIKE))
        assert made.captured.why.startswith(reason), (reason, made.captured.why)
        assert not made.captured.replayed
        assert found[1] == pytest.approx(found[0], rel=1e-5), reason


def test_ddp_says_what_a_graph_cannot_repeat() -> None:
    spawned(_of_ddp, 2)


def _of_ddp(ranks: Ranks) -> None:
    def why(backend: str = "nccl", **options: Any) -> str:
        task = in_short(Given(lambda: nn.Linear(4, 3), (torch.ones(8, 4),), torch.ones(8, 3)), "linear", "fp32")
        strategy = strategies.load("ddp")(task, ranks, 8, options)
        strategy.ranks = replace(ranks, backend=backend)
        return strategy.uncapturable()

    assert why() == why(compression="bf16") == why(accumulation=2) == ""
    assert why("gloo") == "backend gloo sends what lies in host memory"
    assert why(compression="powersgd") == "compression powersgd counts its steps on the CPU"
    assert why(find_unused_parameters=True) == "it looks for unused parameters on the CPU"


def test_the_ranks_agree_every_second_however_many_steps_are_queued(tmp_path: Path) -> None:
    spawned(_agreeing, 1, tmp_path, gpus=1)


def _agreeing(ranks: Ranks, work: Path) -> None:
    """A step takes the device 20 ms, and the CPU nothing: by the queue, 10,000 steps would be a second."""
    agreement = Agreement(ranks, Interruption(), 0, 600.0, None)
    reached, began = [], time.monotonic()
    for step in range(1, 150):
        pretended_gpu.gpu().queue(0.02)
        if agreement.due(step):
            agreement.reach(step, 0.0, 1.0)
            agreement.done(step, saved=False)
            reached.append(time.monotonic() - began)
    assert len(reached) >= 3
    assert max(later - earlier for earlier, later in pairwise(reached)) < 2.5
