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


def of(strategy: str, ranks: int = 2, **options: Any) -> dict[str, Any]:
    """A run's values: so many processes, and the strategy's options."""
    return {"strategy": strategy, "launcher": "torchrun", "devices_per_node": ranks, "options": options}


@pytest.mark.slow
def test_dropout_is_drawn_again_as_it_was(bench: Bench) -> None:
    values = of("pipeline_ddp", 4, stages=2, schedule="gpipe", micro_batches=2)
    chain = bench.chain("run", **SHORT, **values).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "passed", found
    assert len(found["spots"]) == len(set(kept(chain).spots))
    assert max(figures(found, "update")) < 2e-6  # of 2e-5 allowed: other masks would change all of it
    assert states(chain.work) == []


@pytest.mark.slow
def test_a_run_is_computed_again_in_its_own_precision_and_parts(bench: Bench) -> None:
    values = of("ddp", accumulation=2)
    chain = bench.chain("run", spec("lenet-digits"), precision="bf16", **SHORT, **values).train(forked=True)
    (found,) = verdict(chain)
    assert found["status"] == "passed", found
    assert max(figures(found, "update")) <= 5e-3
