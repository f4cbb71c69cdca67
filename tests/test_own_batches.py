"""What the gate shows at the runs' own batch sizes, and which run its verdict is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gate_runs import FEW_STEPS, Gates
from relay.base.ending import INTERRUPTED
from relay.datasets.manifest import digest
from relay.equivalence.verdict import CAUSES, Part, Verdict, all_problems, of_batch
from relay.spec.run import OwnBatch

SMALL, LARGE = (OwnBatch(global_batch_size=size, learning_rate=0.02) for size in (16, 64))


@pytest.mark.slow
def test_a_strategy_that_is_wrong_at_a_large_batch_only_is_struck_out_for_that_batch_only(gates: Gates) -> None:
    verdict = gates.verdict("wrong_beyond_eight", steps=FEW_STEPS, global_batch_size=[16, 64])
    assert verdict["problems"] == []
    assert verdict["equivalent"] is False
    assert (verdict["versions"]["torch"], verdict["dataset"]) == (torch.__version__, digest(gates.digits))
    assert of_batch(verdict, SMALL)["equivalent"] is True
    large = of_batch(verdict, LARGE)
    assert large["equivalent"] is False
    failed = {part["name"] for part in large["parts"] if not part["passed"]}
    assert {"batch 64: algorithm: losses", "batch 64: own precision: losses"} <= failed
    said = "batch 64: division of work: step 0: 16 samples reached the loss, the global batch has 64: 0 more than once"
    assert any(problem.startswith(said) for problem in large["problems"])


@pytest.mark.slow
def test_a_strategy_that_finds_no_memory_at_a_large_batch_has_proven_what_came_before(gates: Gates) -> None:
    asked = {"steps": FEW_STEPS, "global_batch_size": [16, 32, 64]}
    assert gates.judge("wrong_no_room", **asked)[0] == INTERRUPTED  # others may have had the memory
    verdict = gates.verdict("wrong_no_room", attempt=2, **asked)
    assert (verdict["equivalent"], verdict["problems"]) == (False, [])
    assert of_batch(verdict, SMALL)["equivalent"] is True
    middle, large = (of_batch(verdict, replace(SMALL, global_batch_size=size)) for size in (32, 64))
    assert middle["problems"] == [
        "batch 32: it cannot run this training, and failed twice, the second time alone: OutOfMemoryError: CUDA out "
        "of memory. Tried to allocate 80.00 GiB"
    ]
    assert large["problems"] == ["batch 64: the gate has trained no step at it"]
    assert not list(gates.results.rglob("unfinished.json"))


def two_batches() -> dict[str, Any]:
    """The verdict of a gate whose larger batch failed."""
    verdict = Verdict("a-gate")
    verdict.add(Part("algorithm", "losses", "largest loss difference", 1e-15, 1e-9))
    verdict.figures["samples_per_rank"] = [8.0, 8.0]
    for own, figure in ((SMALL, 1e-15), (LARGE, 1e-3)):
        found = verdict.of_batch(own)
        found.add(Part("algorithm", "losses", "largest loss difference", figure, 1e-9))
        found.figures["samples_per_rank"] = [own.global_batch_size / 2] * 2
    return verdict.as_dict() | {"strategy_source": "5eed"}


def test_a_run_is_judged_by_the_shared_parts_and_those_of_its_own_batch() -> None:
    verdict = two_batches()
    assert verdict["equivalent"] is False
    assert [own["equivalent"] for own in verdict["own_batches"]] == [True, False]
    small, large = (of_batch(verdict, own) for own in (SMALL, LARGE))
    assert (small["equivalent"], small["problems"], small["samples_per_rank"]) == (True, [], [8.0, 8.0])
    assert [part["name"] for part in small["parts"]] == ["algorithm: losses", "batch 16: algorithm: losses"]
    problem = f"batch 64: {CAUSES['algorithm']}algorithm: losses: largest loss difference: 1.0e-03, allowed is 1e-09"
    assert (large["equivalent"], large["problems"], large["samples_per_rank"]) == (False, [problem], [32.0, 32.0])
    assert all_problems(verdict) == [problem]


@pytest.mark.parametrize("changed", [{"global_batch_size": 32}, {"learning_rate": 0.08}])
def test_a_batch_at_which_no_step_was_trained_is_not_proven(changed: dict[str, Any]) -> None:
    own = OwnBatch(**({"global_batch_size": 16, "learning_rate": 0.02} | changed))
    found = of_batch(two_batches(), own)
    assert found["equivalent"] is False
    assert found["problems"] == [f"batch {own.global_batch_size}: the gate has trained no step at it"]
