"""DeepSpeed's strategies train what one process trains, and divide what they say."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import debian_packages
from gate_runs import Gates
from preloaded import spawned
from relay.process.ranks import Ranks
from sharded import batch, built, of_task, prepared
from stacks import provide
from zero_gates import judged

# What of the parameters and of the gradients each of two processes holds; None: nothing is said.
SHARES = {"zero1": (1, None), "zero3": (1 / 2, 1 / 2)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test judges both


@pytest.fixture(scope="module")
def verdicts(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Those of both strategies, which share their processes."""
    debian_packages.require()
    provide("deepspeed")
    return judged(gates, [{"strategy": name} for name in SHARES], 2, tmp_path_factory.mktemp("zero"))


@pytest.mark.parametrize("name", SHARES)
def test_it_trains_what_the_reference_trains_and_divides_its_part(verdicts: dict[str, Any], name: str) -> None:
    verdict, shares = verdicts[name], verdicts[name]["bytes_held_share"]
    assert verdict["problems"] == []
    assert verdict["max_loss_difference"] <= 1e-9
    assert {"algorithm: parameters", "scaled: parameters", "between steps: state"} <= {
        part["name"] for part in verdict["parts"]
    }
    parameters, gradients = SHARES[name]
    assert shares["optimizer"] == pytest.approx([1 / 2] * 2, rel=0.05)
    assert shares["parameters"] == pytest.approx([parameters] * 2, rel=0.05)
    assert gradients is None or shares["gradients"] == pytest.approx([gradients] * 2, rel=0.05)


# A training under DeepSpeed goes on at another number of processes, and under another of its strategies.


class Counting(torch.optim.SGD):
    """Its rate follows from its steps, which it counts in its groups."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] = 0.1 / group["steps"]
        return super().step(closure)


def _train(ranks: Ranks, strategy: str, place: Path, *, resumes: bool) -> None:
    task = of_task("gpt-tiny", place / "text", "fp64")
    task.own.optimizer = lambda parameters: Counting(  # type: ignore[method-assign]
        [{"params": [each for each in parameters if (each.dim() > 1) is matrix]} for matrix in (True, False)], lr=0.1
    )
    trained = built(strategy, ranks, task)
    if resumes:
        trained.load(place / "middle")
    else:
        for _ in range(2):
            trained.train_step(batch(task, trained))
        trained.save(place / "middle").result()
    trained.train_step(batch(task, trained))
    whole = trained.whole_model()
    if ranks.rank == 0:
        torch.save(whole, place / f"{strategy}.pt")


@pytest.mark.usefixtures("verdicts")  # with them the tests' own forks see the stack's packages
def test_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    prepared("gpt-tiny", tmp_path / "text")
    spawned(partial(_train, resumes=False), 2, "zero3", tmp_path)
    spawned(partial(_train, resumes=True), 1, "zero1", tmp_path)
    unbroken, resumed = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("zero3", "zero1"))
    assert unbroken.keys() == resumed.keys()
    assert max(float((unbroken[name] - resumed[name]).abs().max()) for name in unbroken) <= 1e-12
