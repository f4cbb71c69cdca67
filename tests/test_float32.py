"""The reference's float32 arithmetic is held against its own in float64, and the optimizer's state is float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gate_runs import Gates, planned
from relay.base.errors import UserError
from relay.equivalence import float32
from relay.equivalence.figures import distance
from relay.equivalence.plain import Plain
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import OWN_OPTIMIZER, trials

CPU = torch.device("cpu")


def moved(data: TrialData, parts: int = 1, state: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """How far the twin with the task's optimizer moves each parameter, its state kept in that type between steps."""
    task = data.task(OWN_OPTIMIZER)
    plain = Plain.of(task, CPU)
    before = [p.detach().clone() for p in plain.model.parameters()]
    for step in range(OWN_OPTIMIZER.steps):
        slices = [next(data.batches(task, step + 1, part, parts, step)) for part in range(parts)]
        plain.step([slices], task.learning_rate(step))
        for held in plain.optimizer.state.values():
            for tensor in (t for t in held.values() if t.dim()):
                tensor.copy_(tensor.to(state))
    return [p.detach() - b for p, b in zip(plain.model.parameters(), before, strict=True)]


@pytest.mark.slow
def test_an_optimizer_state_that_is_rounded_shows_in_the_twin_with_that_optimizer(gates: Gates) -> None:
    run, _ = planned("cpu", task="lenet-adam-cifar10")
    data = TrialData(run, gates.dataset(run), CPU)
    assert OWN_OPTIMIZER.name in {trial.name for trial in trials(run)}
    exact = moved(data)
    length = float(torch.stack([tensor.norm() for tensor in exact]).norm())
    right = distance(list(zip(moved(data, parts=4), exact, strict=True))) / length
    wrong = distance(list(zip(moved(data, state=torch.bfloat16), exact, strict=True))) / length
    assert 0 < right < OWN_OPTIMIZER.limit / 3
    assert wrong > OWN_OPTIMIZER.limit * 3


def test_plain_sgd_needs_no_second_twin() -> None:
    assert OWN_OPTIMIZER.name not in {trial.name for trial in trials(planned("cpu")[0])}


def test_float32_that_is_float32_passes() -> None:
    float32.check("fp32", CPU)


def test_float32_that_is_lowered_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast in the place of a variable: it lowers float32 alone, too."""
    convolved = torch.nn.functional.conv2d

    def lowered(inputs: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=inputs.dtype == torch.float32):
            return convolved(inputs, *others, **named).to(inputs.dtype)

    monkeypatch.setattr(torch.nn.functional, "conv2d", lowered)
    with pytest.raises(UserError, match="away from those in float64; allowed is 1e-05"):
        float32.check("fp32", CPU)
    for no_float32 in ("fp64", "tf32"):
        float32.check(no_float32, CPU)
