"""One trial trained twice in lock-step, to see after how many steps rounding alone moves its losses and parameters.

Floating-point sums in another order diverge chaotically. Where two plain trainings part, no strategy can be judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from relay.equivalence.plain import Plain
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import Trial
from relay.spec.run import Training
from relay.task.data import Batch


class LockStep:
    """A plain training, and a second one that differs from it in rounding alone.

    The second one computes each of a batch's `parts` in halves. In float64, its parameters also begin one unit in the
    last place away, each up or down: halves alone may happen to round alike where other orders of the sums do not. In
    lower precisions a unit would be more than a strategy's rounding. A trial without `most_rounding` has no second
    training.
    """

    def __init__(self, run: Training, trial: Trial, data: TrialData, parts: int = 1) -> None:
        self.trial, self.data, self.exact = trial, data, trial.precision == "fp64"
        self.parts = min(parts, run.batch.global_batch_size)
        self.task = TrialTask.in_trial(run, trial, scale=1.0)
        self.first, self.second = Plain.of(self.task, data.device), None
        if trial.most_rounding is not None:
            self.second = Plain.of(self.task, data.device)
            if self.exact:
                _move_one_unit(self.second, run.seed)
        self.before, self.kept = ([p.clone() for p in _parameters(self.first)] for _ in range(2))
        self.losses: list[torch.Tensor] = []
        self.rounding = dict.fromkeys(trial.compares, 0.0)
        self.ended = ""

    @property
    def steps(self) -> int:
        """How many steps can be compared."""
        return len(self.losses)

    def train(self) -> None:
        """Train to the trial's last step, or to the last one before rounding or overflow takes over."""
        slices = (self.data.batches(self.task, self.trial.steps, part, self.parts) for part in range(self.parts))
        for batch in zip(*slices, strict=True):
            rate = self.task.learning_rate(self.steps)
            losses = [self.first.step([batch], rate)]
            if self.second is not None:
                losses.append(self.second.step([_in_halves(batch)], rate))
            self.ended = self._fault(losses)
            if self.ended:
                torch._foreach_copy_(_parameters(self.first), self.kept)
                return
            self.losses.append(losses[0])
            torch._foreach_copy_(self.kept, _parameters(self.first))  # of the last step that counts

    def _fault(self, losses: Sequence[torch.Tensor]) -> str:
        """Why the step just trained cannot be compared; '' where it can, whose rounding is then noted."""
        if self.second is None:
            finite = all(bool(each.isfinite().all()) for each in (*losses, *_parameters(self.first)))
            return "" if finite else "is not finite"
        assert self.trial.most_rounding is not None
        found = {"losses": float((losses[0] - losses[1]).abs())}
        if "parameters" in self.trial.compares:
            found["parameters"] = self._apart(_parameters(self.second))
        if not all(map(math.isfinite, found.values())):
            return "is not finite"
        compared = {name: found[name] for name in self.rounding}
        # In low precision the first step counts whatever it rounds: no learning rate makes that less.
        if max(compared.values()) > self.trial.most_rounding and (self.exact or self.losses):
            return f"is moved by rounding by {max(compared.values()):.0e}"
        self.rounding = {name: max(known, compared[name]) for name, known in self.rounding.items()}
        return ""

    def _apart(self, others: list[torch.Tensor]) -> float:
        """How far the second training's parameters are, measured as the trial compares them."""
        differences = torch._foreach_sub(_parameters(self.first), others)
        if self.trial.relative:
            return _norm(differences) / (self._moved() or 1.0)
        return float(torch.stack([each.abs().max() for each in differences]).max())

    def _moved(self) -> float:
        """How far training has moved the parameters."""
        return _norm(torch._foreach_sub(_parameters(self.first), self.before))

    def result(self) -> dict[str, Any]:
        """What a gate compares with; `losses` (steps,), parameters and `outputs` of the first batch in evaluation mode.

        `rounding` is the most that rounding has moved losses and parameters, `update` the L2 norm of what training has
        changed in the parameters, `ended` why there are fewer steps than the trial wishes for.
        """
        inputs, _ = next(self.data.batches(self.task, 1, 0, 1))
        return {
            "steps": self.steps,
            "ended": self.ended,
            "losses": torch.stack(self.losses),
            "parameters": {name: tensor.cpu() for name, tensor in self.first.model.state_dict().items()},
            "outputs": self.first.predict(inputs).cpu(),
            "update": self._moved(),
            "rounding": self.rounding,
            "footprint": self.first.footprint,
        }


def _parameters(plain: Plain) -> list[torch.Tensor]:
    return [p.detach() for p in plain.model.parameters()]


def _in_halves(parts: Sequence[Batch]) -> list[Batch]:
    """Each part in two, where it has two samples or more."""
    halves = (zip(inputs.chunk(2), targets.chunk(2), strict=True) for inputs, targets in parts)
    return [half for pair in halves for half in pair]


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    """The L2 norm of all together, in float64."""
    return float(torch.stack([tensor.double().norm() for tensor in tensors]).norm())


@torch.no_grad()
def _move_one_unit(plain: Plain, seed: int) -> None:
    """Move each parameter by one unit in the last place, up or down at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in plain.model.parameters():
        signs = torch.randint(0, 2, parameter.shape, generator=generator, dtype=parameter.dtype) * 2 - 1
        parameter.mul_(1 + torch.finfo(parameter.dtype).eps * signs.to(parameter.device))
