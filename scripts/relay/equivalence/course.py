"""A short training with all that a run's training does between its steps: it predicts, saves, and goes on elsewhere.

Nothing is switched off here: dropout draws, and its masks are recorded; BatchNorm takes the statistics of its batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relay.equivalence.masks import Drawn, Masks, recorded
from relay.equivalence.modules import Called, named
from relay.equivalence.start import start
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import Trial
from relay.equivalence.work import Work
from relay.process.generators import generators, restore_generators, seed_generators
from relay.process.ranks import Ranks
from relay.spec.run import Training
from relay.strategies.base import Strategy
from relay.task.task import Task

# Steps before the checkpoint is saved; those that the first object still trains while it is written; and those that
# the object trains that has loaded it.
BEFORE, BESIDE, AFTER = 3, 1, 2
# Predictions are of a batch that is not trained with.
PREDICTED = BEFORE + AFTER


class EndedEarlyError(Exception):
    """The strategy trained fewer steps than there are batches."""


@dataclass
class AsTrained(TrialTask):
    """The task as a run trains it, dropout and BatchNorm included; not compiled, so that its operations are seen."""

    masks: Masks = field(default_factory=Masks)

    @classmethod
    def of_run(cls, run: Training, trial: Trial) -> AsTrained:
        """The run's task, shrunken as in every trial."""
        given = TrialTask.in_trial(run, trial, scale=1.0)
        values = {f.name: getattr(given, f.name) for f in fields(TrialTask)}
        return cls(**values | {"compiled": False})

    def layers(self) -> nn.Sequential:
        """The network's layers, which carry their names, and whose dropout records its masks."""
        built = Task.layers(self).double()
        named(built)
        recorded(built, self.masks)
        return built


@dataclass
class Seen:
    """What one rank saw of the training, by step where it is a list."""

    losses: list[float] = field(default_factory=list)
    masks: list[dict[str, list[Drawn]]] = field(default_factory=list)
    work: list[tuple[int, int]] = field(default_factory=list)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)  # of this replica's slice; by when
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)  # after the last step
    trained: Called = field(default_factory=Called)
    predicted: Called = field(default_factory=Called)
    problems: list[str] = field(default_factory=list)


@dataclass
class Course:
    """One strategy object's part of the training, on this rank. Everything here is collective."""

    run: Training
    data: TrialData
    ranks: Ranks
    task: TrialTask
    lossy: bool = False
    seen: Seen = field(default_factory=Seen)

    def build(self, measured: Mapping[str, Any] | None = None) -> Strategy:
        """A new strategy object, with generators seeded as the trainer seeds them."""
        strategy = start(self.run, self.task, self.ranks, lossy=self.lossy, measured=measured)
        seed_generators(self.run.seed * 1_000_003 + strategy.replica.index, self.ranks.devices)
        self.strategy = strategy
        return strategy

    def steps(self, first: int, last: int) -> Iterator[int]:
        """Train the steps from `first` to `last`, and hand over between any two of them, as the trainer's loop does.

        Raises EndedEarlyError.
        """
        strategy, task, seen = self.strategy, self.task, self.seen
        replica, work = strategy.replica, Work()
        strategy.set_learning_rate(task.learning_rate(first))
        batches = self.data.batches(task, last, replica.index, replica.count, first)
        with closing(strategy.train_steps(batches)) as losses:
            for step in range(first, last):
                self._drop_records(work)
                with self._watched(work):
                    loss = next(losses, None)
                if loss is None:
                    raise EndedEarlyError(f"its training ended after step {step}, of {last}")
                seen.losses.append(loss.double().item() if replica.reports else float("nan"))
                seen.work.append(work.taken())
                if isinstance(task, AsTrained):
                    seen.masks.append(task.masks.taken())
                seen.buffers = {name: b.detach().cpu().clone() for name, b in strategy.model.named_buffers()}
                task.seen.clear()
                yield step
                strategy.set_learning_rate(task.learning_rate(step + 1))

    @contextmanager
    def _watched(self, work: Work) -> Iterator[None]:
        """Count operations, and note which modules are called; not in other trials, which may be compiled."""
        if not isinstance(self.task, AsTrained):
            yield
            return
        with work.counting(), self.seen.trained.noting():
            yield

    def _drop_records(self, work: Work) -> None:
        """Forget what was computed and drawn outside of steps, while strategies are built."""
        work.taken()
        if isinstance(self.task, AsTrained):
            self.task.masks.taken()

    def predict(self, when: str) -> None:
        """Predict, note which modules are called, and look for traces that evaluation leaves."""
        with self._traceless(), self.seen.predicted.noting():
            outputs = self.outputs(PREDICTED)
        if self.strategy.replica.reports:
            self.seen.outputs[when] = outputs
        if not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
            self.seen.problems.append("evaluation: gradients stay switched off after it")

    def outputs(self, step: int) -> torch.Tensor:
        """What the strategy predicts for this replica's slice of a step's batch, on the CPU."""
        replica = self.strategy.replica
        inputs, _ = next(self.data.batches(self.task, step + 1, replica.index, replica.count, step))
        return self.strategy.predict(inputs).detach().cpu()

    @contextmanager
    def _traceless(self) -> Iterator[None]:
        """Tell what an evaluation changes: the model, a module's mode, or the random generators."""
        strategy, told = self.strategy, self.seen.problems
        before, drawn = {name: tensor.clone() for name, tensor in strategy.whole_model().items()}, generators()
        modes = {name: module.training for name, module in strategy.model.named_modules()}
        yield
        after = strategy.whole_model()
        changed = [name for name in before if name not in after or not torch.equal(before[name], after[name])]
        if changed and self.ranks.rank == 0:
            told.append(f"evaluation: it changes the model: {changed[0]} ({len(changed)} of {len(before)})")
        if not _same(drawn, generators()):
            told.append("evaluation: it draws random numbers, so that the training after it draws others")
        if left := [name for name, module in strategy.model.named_modules() if module.training != modes.get(name)]:
            told.append(f"evaluation: it leaves {left[0] or 'the model'} in another mode ({len(left)} of {len(modes)})")

    def save(self, folder: Path) -> tuple[Any, dict[str, Any]]:
        """Begin to save; the future that tells the end, and the generators' state."""
        return self.strategy.save(folder), generators()

    def load(self, folder: Path, drawn: dict[str, Any], measured: Mapping[str, Any]) -> Strategy:
        """A new object that has loaded the checkpoint, as a later job makes it."""
        strategy = self.build(measured)
        strategy.load(folder)
        restore_generators(drawn)
        self.ranks.barrier()
        return strategy


def _same(one: Any, other: Any) -> bool:
    """Whether two generators' states are equal, at any depth."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if torch.is_tensor(one):
        return bool(torch.equal(one, other))
    if isinstance(one, list) and one and torch.is_tensor(one[0]):
        return all(_same(mine, yours) for mine, yours in zip(one, other, strict=True))
    return bool(one == other)
