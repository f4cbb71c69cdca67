"""One trial trained several times in lock-step, to see after how many steps rounding alone moves what is compared.

Floating-point sums in another order diverge chaotically. Where two plain trainings part, no strategy can be judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from relay.equivalence.plain import Plain
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import Trial
from relay.spec.run import Training
from relay.task.data import Batch


class LockStep:
    """A plain training, and others that differ from it in rounding alone.

    Each of the others computes a batch's `parts` in as many pieces as one of `divisions` says: in all equal ones that
    there are, where nothing is said. A library may take another algorithm for few samples than for many, as cuDNN does,
    and that one rounds otherwise. So all divisions train the first step, one after the other, and the farthest goes on.

    In float64 there are halves alone, whose parameters begin one unit in the last place away, each up or down: pieces
    may happen to round alike where other orders of the sums do not. In lower precisions a unit would be more than a
    strategy's rounding. A trial without `most_rounding` has no others.
    """

    def __init__(
        self, run: Training, trial: Trial, data: TrialData, parts: int = 1, divisions: Sequence[int] = ()
    ) -> None:
        self.trial, self.data, self.exact = trial, data, trial.precision == "fp64"
        self.parts = min(parts, run.batch.global_batch_size)
        self.task = TrialTask.in_trial(run, trial, scale=1.0)
        self.first = Plain.of(self.task, data.device)
        self.others: dict[int, Plain | None] = {}  # by the number of pieces; None before the first step
        if trial.most_rounding is not None:
            wanted = divisions or divisors(run.batch.global_batch_size // self.parts)
            self.others = dict.fromkeys((2,) if self.exact else wanted)
        self.seed = run.seed
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
            divided = list(self._divided_steps(batch, rate))
            losses += [loss for loss, _ in divided]
            self.ended = self._fault(losses, [apart for _, apart in divided])
            if self.ended:
                torch._foreach_copy_(_parameters(self.first), self.kept)
                return
            self.losses.append(losses[0])
            torch._foreach_copy_(self.kept, _parameters(self.first))  # of the last step that counts

    def _divided_steps(self, batch: Sequence[Batch], rate: float) -> Iterator[tuple[torch.Tensor, float]]:
        """The loss of each division's step, and how far from the first training's it leaves the parameters.

        Of several, the one whose gradients are farthest away is kept: most parameters are too coarse to show it.
        """
        tried, self.others, farthest = self.others, {}, 0.0
        for pieces, other in tried.items():
            training = other or self._divided()
            loss = training.step([_in_pieces(batch, pieces)], rate)
            yield loss, self._apart(_parameters(training))
            if len(tried) > 1:
                distance = _norm(torch._foreach_sub(_gradients(self.first), _gradients(training)))
                if self.others and not distance > farthest:
                    continue
                farthest = distance
            self.others = {pieces: training}

    def _divided(self) -> Plain:
        made = Plain.of(self.task, self.data.device)
        if self.exact:
            _move_one_unit(made, self.seed)
        return made

    def _fault(self, losses: Sequence[torch.Tensor], apart: Sequence[float]) -> str:
        """Why the step just trained cannot be compared; '' where it can, whose rounding is then noted."""
        if not self.others:
            finite = all(bool(each.isfinite().all()) for each in (*losses, *_parameters(self.first)))
            return "" if finite else "is not finite"
        assert self.trial.most_rounding is not None
        found = {
            "losses": float((torch.stack([*losses[1:]]) - losses[0]).abs().max()),  # keeps a NaN, as the next one does
            "parameters": float(torch.tensor(apart, dtype=torch.float64).max()),
        }
        compared = {name: found[name] for name in self.rounding}
        if not all(map(math.isfinite, (found["losses"], *compared.values()))):
            return "is not finite"
        # In low precision the first step counts whatever it rounds: no learning rate makes that less.
        if max(compared.values()) > self.trial.most_rounding and (self.exact or self.losses):
            return f"is moved by rounding by {max(compared.values()):.0e}"
        self.rounding = {name: max(known, compared[name]) for name, known in self.rounding.items()}
        return ""

    def _apart(self, others: list[torch.Tensor]) -> float:
        """How far these parameters are from the first training's, measured as the trial compares them."""
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


def _gradients(plain: Plain) -> list[torch.Tensor]:
    """Of the last step, in the order of parameters."""
    return [p.grad for p in plain.model.parameters() if p.grad is not None]


def divisors(samples: int) -> list[int]:
    """Into how many equal pieces so many samples can be divided; a single sample is one."""
    return [pieces for pieces in range(2, samples + 1) if samples % pieces == 0] or [1]


def _in_pieces(parts: Sequence[Batch], pieces: int) -> list[Batch]:
    """Each part in so many pieces, or in single samples where it has fewer."""
    divided = (zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True) for inputs, targets in parts)
    return [piece for part in divided for piece in part]


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
