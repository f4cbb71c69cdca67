"""Spot checks of right runs: every strategy's states load into one process, which computes what the run recorded."""

from __future__ import annotations

from typing import Any

import pytest

from chain_runs import Bench
from own_tasks import spec
from spot_checked import figures, kept, states, verdict

pytest_plugins = ["chain_runs"]

SHORT = {"total_steps": 8, "evaluate_every_steps": 4}
# ResNet's blocks with BatchNorm, and a GPT with experts; both narrow.
NORMALISED = spec("resnet18-tiny", global_batch_size=8, width=4, train_count=301, test_count=77)
EXPERTS = spec("gpt-moe-tiny", global_batch_size=8)


def of(strategy: str, ranks: int = 2, **options: Any) -> dict[str, Any]:
    """A run's values: so many processes, and the strategy's options."""
    return {"strategy": strategy, "launcher": "torchrun", "devices_per_node": ranks, "options": options}


RIGHT: dict[str, dict[str, Any]] = {
    "ddp in parts": of("ddp", accumulation=2),
    "pipeline_ddp": of("pipeline_ddp", 4, stages=2, schedule="gpipe", micro_batches=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_dropout_is_drawn_again_as_it_was(bench: Bench, name: str) -> None:
    chain = bench.chain("run", **SHORT, **RIGHT[name]).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "passed", found
    assert len(found["spots"]) == len(set(kept(chain).spots))
    assert max(figures(found, "update")) < 2e-6  # of 2e-5 allowed: other masks would change all of it
    assert states(chain.work) == []


@pytest.mark.long
def test_masks_that_cannot_be_drawn_again_are_told(bench: Bench) -> None:
    """Only this has dropout that a check cannot repeat."""
    chain = bench.chain("run", **SHORT, **of("tensor_parallel")).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "passed", found
    assert any("masks of dropout cannot be drawn again" in note for note in found["notes"])


@pytest.mark.long
def test_statistics_of_batches_are_those_of_each_slice_and_part(bench: Bench) -> None:
    """Only this checks BatchNorm's statistics of micro-batches."""
    values = of("pipeline", schedule="1f1b", micro_batches=4)
    chain = bench.chain("run", NORMALISED, **SHORT, **values).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "passed", found
    assert len(figures(found, "buffers")) == len(found["spots"])
    assert max(figures(found, "buffers")) < 1e-5


@pytest.mark.long
def test_experts_are_computed_again(bench: Bench) -> None:
    """Only this checks a run with experts."""
    chain = bench.chain("run", EXPERTS, **SHORT, **of("expert_parallel")).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "passed", found
    assert max(figures(found, "update")) < 1e-5


@pytest.mark.slow
def test_a_run_is_computed_again_in_its_own_precision(bench: Bench) -> None:
    chain = bench.chain("run", spec("lenet-digits"), precision="bf16", **SHORT, **of("ddp")).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "passed", found
    assert max(figures(found, "update")) <= 5e-3
