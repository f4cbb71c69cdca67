"""A short training under a strategy, as all trials of the gate train, and what each rank records of it.

Rank 0 judges what all of them tell.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from relay import strategies
from relay.equivalence.figures import leaves_of
from relay.equivalence.plain import Tensors
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import PREDICTED
from relay.process.generators import seed_generators
from relay.process.ranks import Ranks
from relay.run_folder import stalled
from relay.strategies.base import Replica, Strategy
from relay.task import batches
from relay.task.draws import Drawn, Draws
from relay.task.modes import Work
from relay.task.still import Stilled


class EndedEarlyError(Exception):
    """The strategy trained fewer steps than there are batches."""


@dataclass
class AsTrained(TrialTask):
    """The task as a run trains it, dropout and BatchNorm included; not compiled, so that its operations are seen.

    Random numbers are noted, and those of every sample made alike.
    """

    draws: Draws = field(default_factory=lambda: Draws(told_apart=True))
    stilled: Stilled = field(default_factory=lambda: Stilled(draws=True))

    def built(self) -> nn.Module:
        """The model as the user's file builds it."""
        self.compiled = False
        return self.as_written()


@dataclass
class Observed:
    """What one rank saw of a training, by step where it is a list. The last four follow the last step."""

    replica: Replica
    losses: list[float] = field(default_factory=list)  # NaN where another rank reports
    samples: list[list[int]] = field(default_factory=list)  # those that reached this rank's loss
    always_training: bool = True  # in training mode, where dropout is on, after each step
    drawn: list[list[Drawn]] = field(default_factory=list)
    predicting: list[Drawn] = field(default_factory=list)
    work: list[tuple[int, int]] = field(default_factory=list)  # operations, all and forward; 0 where not counted
    outputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # of this replica's slice; after which step
    problems: list[str] = field(default_factory=list)
    bytes_sent: int | None = None  # None where the kernel does not tell
    footprint: dict[str, int] = field(default_factory=dict)
    used_bytes: list[int] = field(default_factory=list)  # the most on each GPU, beyond what it held before
    buffers: Tensors = field(default_factory=dict)


@dataclass
class Course:
    """One strategy object's training, on this rank; with operations `counted`, which compiled code does not show.

    Everything here is collective.
    """

    data: TrialData
    ranks: Ranks
    task: TrialTask
    lossy: bool = False
    counted: bool = False

    def build(self, measured: Mapping[str, Any] | None = None) -> Strategy:
        """A new strategy object, with generators seeded as the trainer seeds them.

        Exact options are in the place of lossy ones, unless the course is `lossy`.
        """
        run = self.data.run
        if run.computation.compile:
            torch.compiler.reset()  # after several networks in one process torch would give up compiling, in silence
        spec, kind = run.strategy, strategies.load(run.strategy.name)
        exact = {} if self.lossy else {name: kind.requirements.options[name] for name in spec.lossy}
        options = {**spec.options, **exact}
        with self.task.in_float64():  # it may compute with the model
            self.strategy = kind(self.task, self.ranks, run.batch.global_batch_size, options, measured)
        self.train_steps: Callable[[Iterator[Any]], Generator[torch.Tensor, None, None]] = self.strategy.train_steps
        self.seen, self.losses = Observed(self.strategy.replica), list[torch.Tensor]()
        seed_generators(run.seed * 1_000_003 + self.strategy.replica.index, self.ranks.devices)
        return self.strategy

    def steps(self, first: int, last: int) -> Generator[int, None, None]:
        """Train the steps from `first` to `last`, and hand over between any two of them, as the trainer's loop does.

        Raises EndedEarlyError.
        """
        strategy, task, seen, work = self.strategy, self.task, self.seen, Work()
        strategy.set_learning_rate(task.learning_rate(first))
        given = self.data.batches(task, last, seen.replica.index, seen.replica.count, first)
        with closing(self.train_steps(given)) as losses:
            for step in range(first, last):
                stalled.further()
                # What was computed outside of steps, while strategies are built or predict, is forgotten.
                work.taken()
                task.draws.taken()
                task.seen.clear()
                with task.computing(), work.counting() if self.counted else nullcontext():
                    loss = next(losses, None)
                if loss is None:
                    raise EndedEarlyError(f"its training ended after step {step}, of {last}")
                self.losses.append(loss)
                seen.samples.append(list(task.seen))
                seen.always_training &= strategy.model.training
                seen.work.append(work.taken())
                seen.drawn.append(task.draws.taken())
                yield step
                strategy.set_learning_rate(task.learning_rate(step + 1))

    def predict(self, after: int, step: int = PREDICTED, *, whole: bool = False) -> None:
        """Predict a step's batch, note what is drawn, and look for traces that evaluation leaves.

        `whole` is that of `leaves_of`.
        """
        replica, strategy = self.seen.replica, self.strategy
        batch = self.data.batch(self.task, step, replica.index, replica.count)
        with self._traceless(), self.task.computing():
            outputs = leaves_of(strategy.predict(batch), self.task.spec.card.compared_along, whole=whole)
        self.seen.predicting += self.task.draws.taken()
        if replica.reports:
            self.seen.outputs[after] = outputs

    @contextmanager
    def _traceless(self) -> Iterator[None]:
        """Tell what an evaluation changes: the model, a module's mode, or gradients."""
        strategy, problems = self.strategy, self.seen.problems
        before = cloned(strategy)
        modes = {name: module.training for name, module in strategy.model.named_modules()}
        yield
        after = strategy.whole_model()
        changed = [name for name in before if name not in after or not batches.same(before[name], after[name])]
        if changed and self.ranks.rank == 0:
            problems.append(f"evaluation: it changes the model: {changed[0]} ({len(changed)} of {len(before)})")
        mode = strategy.model.training  # of modules that were not there before, such as copies that stages make
        if left := [name for name, each in strategy.model.named_modules() if each.training != modes.get(name, mode)]:
            name = left[0] or "the model"
            problems.append(f"evaluation: it leaves {name} in another mode ({len(left)} of {len(modes)})")
        if not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
            problems.append("evaluation: gradients stay switched off after it")

    def loss(self, step: int) -> float:
        """That of one of the object's own steps; -1 is the last one. NaN where another rank reports."""
        return self.losses[step].double().item() / self.task.scale if self.seen.replica.reports else math.nan

    def observed(self) -> Observed:
        """What was seen, with what this rank holds now."""
        strategy = self.strategy
        return replace(
            self.seen,
            losses=[self.loss(step) for step in range(len(self.losses))],
            footprint=self.seen.footprint or strategy.footprint(),
            buffers={name: buffer.detach().cpu().clone() for name, buffer in strategy.model.named_buffers()},
        )


def cloned(strategy: Strategy) -> Tensors:
    """The whole model; complete on rank 0 alone. Collective."""
    return {name: tensor.clone() for name, tensor in strategy.whole_model().items()}
