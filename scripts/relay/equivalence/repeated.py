"""The plain repetition of a training with evaluations and a checkpoint: it draws nothing, and never stops.

It drops what the strategy has dropped. Each slice, and each part of it that a strategy works through, is normalised by
its own statistics, which is what BatchNorm is by definition.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from relay.equivalence import modules
from relay.equivalence.course import AFTER, BEFORE, BESIDE, PREDICTED, AsTrained, Seen
from relay.equivalence.masks import Drawn
from relay.equivalence.plain import Plain
from relay.equivalence.trial_task import TrialData
from relay.equivalence.work import Work
from relay.spec.requirements import Requirements
from relay.spec.run import Training
from relay.strategies.base import Replica
from relay.task.data import Batch

Tensors = dict[str, torch.Tensor]


@dataclass
class Told:
    """What a rank tells after the training: of its first object, and of the second one, which has loaded."""

    replica: Replica
    first: Seen
    second: Seen
    built: dict[str, modules.Configuration]
    optimizer_bytes: int
    lowered: list[str]


@dataclass
class Loaded:
    """A model's state and its optimizer's, by name, on the CPU."""

    model: Tensors
    optimizer: Tensors  # "momentum_buffer of conv1.weight", …

    @property
    def all(self) -> Tensors:
        """Both."""
        return self.model | self.optimizer

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> Loaded:
        """A copy of both."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        held = {
            f"{kind} of {names[id(parameter)]}": torch.as_tensor(value).detach().double().cpu().clone()
            for parameter, state in optimizer.state.items()
            for kind, value in state.items()
            if value is not None
        }
        return cls({name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}, held)


@dataclass
class Line:
    """One unbroken training: what every comparison of an object is made with."""

    begins: int = 0  # its first step
    losses: list[float] = field(default_factory=list)
    outputs: dict[str, list[list[torch.Tensor]]] = field(default_factory=dict)  # by when: candidates of each slice
    work: list[tuple[int, int]] = field(default_factory=list)
    statistics: list[list[Tensors]] = field(default_factory=list)  # of each replica: what its buffers may be


class Repeated:
    """Rank 0's repetition of what the strategy's two objects trained.

    `middle`, `beside` and `end` are the state when the checkpoint was saved, when the first object had trained on
    beside it, and when the second one had.
    """

    middle: Loaded
    beside: Loaded
    end: Loaded

    def __init__(
        self, run: Training, data: TrialData, task: AsTrained, told: Sequence[Told], requirements: Requirements
    ) -> None:
        self.run, self.data, self.task, self.told = run, data, task, told
        self.divides, self.replicas = requirements.divides, told[0].replica.count
        options = {**requirements.options, **run.strategy.options}
        self.parts = math.prod(int(options[name]) for name in requirements.whole_batches if name in options)
        self.copies = requirements.copies_model
        if self.copies:
            self.parts *= run.shape.devices_per_process
        self.first, self.second = Line(), Line(BEFORE)

    def train(self) -> None:
        """Train on as the strategy's two objects did, from where they part."""
        self.task.masks.given = {}
        plain = replace(Plain.of(self.task, self.data.device, self.replicas), copies=self.copies)
        seen = [told.first for told in self.told]
        for step in range(BEFORE):
            self._step(plain, self.first, step, [each.masks[step] for each in seen])
            if step == 0:
                self._predict(plain, self.first, "after the first step")
        self._predict(plain, self.first, "before the checkpoint")
        self.middle = Loaded.of(self._with_first_statistics(plain), plain.optimizer)
        resumed = copy.deepcopy(plain)
        for step in range(BEFORE, BEFORE + BESIDE):
            self._step(plain, self.first, step, [each.masks[step] for each in seen])
        self.beside = Loaded.of(self._with_first_statistics(plain), plain.optimizer)
        seen = [told.second for told in self.told]
        self._predict(resumed, self.second, "after the checkpoint was loaded")
        for step in range(AFTER):
            self._step(resumed, self.second, BEFORE + step, [each.masks[step] for each in seen])
        self._predict(resumed, self.second, "at the end")
        self.end = Loaded.of(self._with_first_statistics(resumed), resumed.optimizer)

    def _step(self, plain: Plain, line: Line, step: int, drawn: Sequence[Mapping[str, list[Drawn]]]) -> None:
        """Train one step, in slices and parts, with the masks that all ranks have drawn in it."""
        together: dict[str, list[Drawn]] = {}
        for masks in drawn:
            for name, rows in masks.items():
                together.setdefault(name, []).extend(rows)
        self.task.masks.given = together
        before = copy.deepcopy(plain.statistics)
        work = Work()
        with work.counting():
            line.losses.append(float(plain.step(self._slices(step), self.task.learning_rate(step))))
        line.work.append(work.taken())
        line.statistics = [
            [own] if replica == 0 else [own, self._synchronised(before[0], before[replica], own)]
            for replica, own in enumerate(copy.deepcopy(plain.statistics))
        ]

    def _slices(self, step: int) -> list[list[Batch]]:
        """The step's batch: a slice for each replica, in the parts that the strategy works through."""
        slices = []
        for replica in range(self.replicas):
            inputs, targets = next(self.data.batches(self.task, step + 1, replica, self.replicas, step))
            slices.append(list(zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True)))
        return slices

    def _synchronised(self, first: Tensors, own: Tensors, after: Tensors) -> Tensors:
        """A replica's statistics after a step, where it has begun the step with the first one's, as under DDP."""
        momentum = {name: m.momentum for name, m in self.task.model().named_modules() if hasattr(m, "momentum")}
        moved = {}
        for name, tensor in after.items():
            kept = (1 - (momentum.get(name.rpartition(".")[0]) or 0.0)) ** self.parts
            counts = not tensor.is_floating_point()
            moved[name] = tensor if counts else tensor + kept * (first[name] - own[name])
        return moved

    def _predict(self, plain: Plain, line: Line, when: str) -> None:
        """Outputs of every slice, by the replica's own statistics and by the first one's."""
        candidates = []
        for replica in range(self.replicas):
            inputs, _ = next(self.data.batches(self.task, PREDICTED + 1, replica, self.replicas, PREDICTED))
            own = replace(plain, statistics=plain.statistics[replica:])
            candidates.append([each.predict(inputs).cpu() for each in (own, plain)])
        line.outputs[when] = candidates

    def _with_first_statistics(self, plain: Plain) -> nn.Module:
        """The model with the first replica's buffers, which a checkpoint holds for others to load."""
        plain.use_statistics(0)
        return plain.model

    def statistics_of(self, replica: int) -> list[Tensors]:
        """What the first object's buffers may be at its end: the replica's own, or moved from the first one's."""
        return self.first.statistics[replica] if self.first.statistics else [self.beside.model]
