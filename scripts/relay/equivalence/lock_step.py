"""One trial trained several times in lock-step, to see after how many steps rounding alone moves what is compared.

Floating-point sums in another order diverge chaotically. Where two plain trainings part, no strategy can be judged.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from relay.equivalence.figures import each_apart, largest, most, norm, scaled
from relay.equivalence.plain import Plain, move, one_unit
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import Trial
from relay.strategies.base import footprint
from relay.task import batches
from relay.task.batches import Batch
from relay.task.calls import copied
from relay.task.places import mistake

NOT_FINITE = "is not finite"

GOING_ON = 2  # divisions that are trained beyond the first step
# The norm of scaled gradients stays below this: DeepSpeed takes one whose square is beyond float32 for infinite.
LARGEST_NORM = 2.0**40
# A training whose loss has grown so many times, from its first one or from 1, is no training.
DIVERGED = 1e6


class LockStep:
    """A plain training, and others that differ from it in rounding alone.

    Each of the others computes a batch's `parts` in two pieces, and in as many `pieces` as a strategy does: in all
    equal ones that there are, where nothing is said. A library may take another algorithm for few samples than for
    many, as cuDNN does, and that one rounds otherwise. So all divisions train the first step, one after the other. Two
    of them go on: the one in the fewest pieces, and the one that is farthest away. One alone may stay near by chance
    where training is chaotic.

    In float64 there is one alone. There, and in the task's own training in float32, the parameters of the others
    begin one unit in the last place away, each up or down: pieces may happen to round alike where other orders of the
    sums do not, and a maximum may be another one only then. In lower precisions, and in the smooth twin, a unit would
    be more than a strategy's rounding. A trial without `most_rounding` has no others.
    """

    def __init__(self, trial: Trial, data: TrialData, parts: int = 1, pieces: int = 0) -> None:
        self.trial, self.data, self.exact = trial, data, trial.precision == "fp64"
        run = data.run
        self.parts = min(parts, run.batch.global_batch_size)
        self.task = data.task(trial)
        self.first = Plain.of(self.task, data.device)
        self.others: dict[int, Plain | None] = {}  # by the number of pieces; None before the first step
        if trial.most_rounding is not None:
            samples = run.batch.global_batch_size // self.parts
            equal = [each for each in range(2, samples + 1) if samples % each == 0] or [1]  # of a single sample one
            wanted = sorted({2, pieces} - {1}) if pieces else equal
            self.others = dict.fromkeys((max(2, pieces),) if self.exact else wanted)
        shown = trial.name == "algorithm" and not run.computation.compile  # compiled code shows no operations
        self.counted = pieces if shown else 0
        self.work: list[list[tuple[int, int]]] = []
        self.seed = run.seed
        self.before, self.kept = ([p.clone() for p in _parameters(self.first)] for _ in range(2))
        self.losses: list[torch.Tensor] = []
        self.rounding = dict.fromkeys(trial.compares, 0.0)
        self.unsteady = set[int]()  # places of parameters that are not compared
        self.largest_norm = 0.0  # of a step's gradients
        self.ended = ""

    @property
    def steps(self) -> int:
        """How many steps can be compared."""
        return len(self.losses)

    def train(self) -> None:
        """Train to the trial's last step, or to the last one before rounding or overflow takes over.

        Raises UserError where a sample is not finite.
        """
        slices = (self.data.batches(self.task, self.trial.steps, part, self.parts) for part in range(self.parts))
        for batch in zip(*slices, strict=True):
            rate = self.task.learning_rate(self.steps)
            losses = [self._step(self.first, batch, 1, rate)]
            self.largest_norm = max(self.largest_norm, norm(_gradients(self.first)))
            divided = list(self._divided_steps(batch, rate))
            losses += [loss for loss, _ in divided]
            self.ended = self._fault(losses, [apart for _, apart in divided])
            if self.ended == NOT_FINITE:
                self._check_inputs(batch)
            if self.ended:
                torch._foreach_copy_(_parameters(self.first), self.kept)
                return
            self.losses.append(losses[0])
            torch._foreach_copy_(self.kept, _parameters(self.first))  # of the last step that counts

    def _divided_steps(self, batch: Sequence[Batch], rate: float) -> Iterator[tuple[torch.Tensor, float]]:
        """The loss of each division's step, and how far from the first training's it leaves the parameters.

        Of many, the first one is kept, and the one whose gradients are farthest away: most parameters are too coarse to
        show it.
        """
        tried, self.others, farthest = self.others, {}, 0.0
        fewest = next(iter(tried), 0)
        for pieces, other in tried.items():
            training = other or self._divided(pieces)
            loss = self._step(training, batch, pieces, rate)
            yield loss, self._apart(_parameters(training))
            if len(tried) > GOING_ON and pieces != fewest:
                distance = norm(torch._foreach_sub(_gradients(self.first), _gradients(training)))
                if not distance > farthest:
                    continue
                farthest = distance
                self.others = {fewest: self.others[fewest]}
            self.others[pieces] = training

    def _step(self, training: Plain, parts: Sequence[Batch], pieces: int, rate: float) -> torch.Tensor:
        """A step's loss. Where the batch is divided as by the strategy, each part's operations are counted."""
        if counts := pieces == self.counted:
            self.work.append([])
        slices = [batches.chunks(part, pieces) for part in parts]
        return training.step(slices, rate, self.work[-1] if counts else None)

    def _divided(self, pieces: int) -> Plain:
        plain = Plain.of(self.task, self.data.device)
        if self.exact or (self.trial.precision == "fp32" and not self.trial.smooth):
            move(plain.model, self.seed + pieces, one_unit)
        return plain

    def _fault(self, losses: Sequence[torch.Tensor], apart: Sequence[float]) -> str:
        """Why the step just trained cannot be compared; '' where it can, whose rounding is then noted."""
        if self.losses and float(losses[0]) > DIVERGED * max(1.0, abs(float(self.losses[0]))):
            return f"has a loss of {float(losses[0]):.0e}"
        if not self.others:
            finite = all(bool(each.isfinite().all()) for each in (*losses, *_parameters(self.first)))
            return "" if finite else NOT_FINITE
        assert self.trial.most_rounding is not None
        figures = {
            "losses": most(scaled(loss, losses[0]) for loss in losses[1:]),
            "parameters": most(apart),
        }
        compared = {name: figures[name] for name in self.rounding}
        if not all(map(math.isfinite, (figures["losses"], *compared.values()))):
            return NOT_FINITE
        # In low precision the first step counts whatever it rounds: no learning rate makes that less.
        if max(compared.values()) > self.trial.most_rounding and (self.exact or self.losses):
            return f"is moved by rounding by {max(compared.values()):.0e}"
        self.rounding = {name: max(most_so_far, compared[name]) for name, most_so_far in self.rounding.items()}
        return ""

    def _check_inputs(self, parts: Sequence[Batch]) -> None:
        """Raise UserError where the step's samples are not finite: no learning rate mends that."""
        split = self.task.split("train")
        for part in parts:
            if why := split.not_finite(part.data, part.ids):
                raise mistake(type(self.task.own), "datasets", f"the loss of step {self.steps + 1} is not finite{why}")

    def _apart(self, others: list[torch.Tensor]) -> float:
        """How far these parameters are from the first training's, measured as the trial compares them."""
        first = _parameters(self.first)
        if self.trial.relative:
            off = [*torch._foreach_sub(first, others)]
            if self.trial.steady and not self.losses:
                self._note_unsteady(off)
            return norm(each for place, each in enumerate(off) if place not in self.unsteady) / (self._moved() or 1.0)
        return largest(zip(others, first, strict=True))

    def _note_unsteady(self, off: list[torch.Tensor]) -> None:
        """Note which parameters are not compared after the first step: before chaos moves all. Others have to stay."""
        assert self.trial.most_rounding is not None
        moved = torch._foreach_norm(torch._foreach_sub(_parameters(self.first), self.before))
        pairs = zip(torch._foreach_norm(off), moved, strict=True)
        unsteady = {place for place, (one, whole) in enumerate(pairs) if not one <= self.trial.most_rounding * whole}
        unsteady |= self.unsteady
        self.unsteady = unsteady if len(unsteady) < len(off) else self.unsteady

    @property
    def scale(self) -> float:
        """The trial's scale of the loss, a power of two; less where gradients are large by themselves."""
        if self.trial.scale == 1 or not self.largest_norm:
            return self.trial.scale
        return min(self.trial.scale, max(2.0, 2.0 ** math.floor(math.log2(LARGEST_NORM / self.largest_norm))))

    def _moved(self) -> float:
        """How far training has moved the parameters."""
        return norm(torch._foreach_sub(_parameters(self.first), self.before))

    def result(self) -> dict[str, Any]:
        """What a gate compares with; `losses` (steps,), parameters and `outputs` of the first batch in evaluation mode.

        `rounding` is the most that rounding has moved losses and parameters, `update` the L2 norm of what training has
        changed in the parameters, `outputs_rounding` how far what it does to them moves the outputs. `ended` says why
        there are fewer steps than the trial wishes for. `work` are the operations of each step's parts, all and
        forward, where they are counted.
        """
        outputs = self._predicted(self.first)
        unsteady = {id(each) for place, each in enumerate(self.first.model.parameters()) if place in self.unsteady}
        held = self.first.model.state_dict(keep_vars=True)
        return {
            "steps": self.steps,
            "ended": self.ended,
            "scale": self.scale,
            "losses": torch.stack(self.losses),
            "parameters": {name: tensor.cpu() for name, tensor in self.first.model.state_dict().items()},
            "outputs": outputs,
            "outputs_rounding": self._outputs_rounding(outputs),
            "update": self._moved(),
            "rounding": self.rounding,
            "unsteady": [name for name, tensor in held.items() if id(tensor) in unsteady],
            "work": self.work,
            "footprint": footprint(self.first.model, self.first.optimizer),
        }

    def _outputs_rounding(self, outputs: list[torch.Tensor]) -> list[float]:
        """In float64, how far each of them goes when every parameter is as far away as rounding has moved any."""
        if not self.exact:
            return []
        moved = replace(self.first, model=copied(self.first.model))
        move(moved.model, self.seed, lambda _: self.rounding.get("parameters", 0.0))
        return each_apart(self._predicted(moved), outputs)

    def _predicted(self, plain: Plain) -> list[torch.Tensor]:
        return plain.predicted(self.data.batch(self.task, 0), whole=True)


def _parameters(plain: Plain) -> list[torch.Tensor]:
    return [p.detach() for p in plain.model.parameters()]


def _gradients(plain: Plain) -> list[torch.Tensor]:
    """Of the last step, in the order of parameters."""
    return [p.grad for p in plain.model.parameters() if p.grad is not None]
