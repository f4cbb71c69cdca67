"""Expert parallelism: tokens travel to their experts and back, and a wrong sum fails the gate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch import nn

from gate_runs import Gates, planned, shortened
from models import Routed, UNet
from preloaded import spawned
from relay.base.errors import UserError
from relay.equivalence import gate
from relay.process.ranks import Ranks
from relay.spec.run import Run
from relay.strategies._experts import mixtures
from relay.strategies.base import Strategy
from sharded import FP64, MOE, Given, bound, built


def test_parameters_that_are_not_stacked_are_refused() -> None:
    model = Routed()
    assert [name for name, _ in mixtures(model)] == ["first", "second"]
    model.second.shared = nn.Parameter(torch.ones(6))
    with pytest.raises(UserError, match=r"^experts: 'second.shared' has the shape \[6\]; allowed: parameters of 4 exp"):
        list(mixtures(model))


def _without(ranks: Ranks) -> None:
    task = bound(Given(UNet, (torch.randn(8, 1, 8, 8),), torch.randn(8, 1, 8, 8)), "unet")
    with pytest.raises(UserError, match=r"^expert_parallel: UNet has no mixture of experts"):
        built("expert_parallel", ranks, task)


@pytest.mark.slow
def test_a_model_without_experts_is_refused() -> None:
    spawned(_without, 2)


def _summed(ranks: Ranks, run: Run, dataset: Path, trained: Path, place: Path) -> None:
    from relay.strategies.expert_parallel import ExpertParallel

    ExpertParallel.backward = Strategy.backward
    verdict = gate.judge(run, dataset, trained, ranks, place / "checkpoints")
    if ranks.rank == 0:
        assert "scaled: parameters" in {part.name for part in verdict.parts if not part.passed}


@pytest.mark.slow
def test_experts_whose_gradients_are_sums_fail_the_gate(gates: Gates, tmp_path: Path) -> None:
    run, plain = planned("expert_parallel", 2, **MOE, **FP64)
    trained = gates.reference(shortened(plain, 2))
    spawned(_summed, 2, shortened(run, 2), gates.dataset(run), trained, tmp_path)
