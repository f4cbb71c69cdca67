"""The plain repetition of a training with evaluations and a checkpoint: one training that never stops.

Each slice, and each part of it that a strategy works through, is normalised by its own statistics, which is what
BatchNorm is by definition.
"""

from __future__ import annotations

import torch

from relay.equivalence.course import AsTrained
from relay.equivalence.plain import Plain, State, Statistics, declared_parts, move, one_unit
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import AFTER, BEFORE, PREDICTED
from relay.spec.requirements import Requirements
from relay.task import batches
from relay.task.batches import Batch
from relay.task.draws import Drawn


class Repeated:
    """Rank 0's repetition of what the strategy's two objects trained; what it showed is by step where it is a list.

    `work` has the operations of each slice, all and forward.

    `outputs` are by the step after which it predicted: of each slice, what they may be, by the replica's own statistics
    or by the first one's. `begin` is the first state, `middle` that when the checkpoint was saved, `end` the last one.
    `alike`: that of `Plain`.
    """

    begin: State
    middle: State
    end: State

    def __init__(
        self, data: TrialData, task: AsTrained, replicas: int, requirements: Requirements, *, alike: bool = False
    ) -> None:
        self.data, self.task, self.replicas, self.requirements = data, task, replicas, requirements
        self.parts = declared_parts(data.run, requirements)
        if requirements.copies_model:
            self.parts *= data.run.shape.devices_per_process
        self.plain = Plain.of(task, data.device, replicas)
        self.plain.copies, self.plain.alike = requirements.copies_model, alike
        self.losses: list[float] = []
        self.work: list[list[tuple[int, int]]] = []
        self.drawn: list[list[Drawn]] = []
        self.predicting: dict[int, list[Drawn]] = {}
        self.outputs: dict[int, list[list[list[torch.Tensor]]]] = {}

    def moved(self) -> Repeated:
        """Another one, whose parameters begin one unit in the last place away: what is then apart is rounding."""
        alike = self.plain.alike
        other = Repeated(self.data, self.task, self.replicas, self.requirements, alike=alike)
        move(other.plain.model, self.data.run.seed, one_unit)
        return other

    def train(self) -> None:
        """Train all steps, predicting where the strategy does."""
        self.begin = State.of(self.plain)
        for step in range(BEFORE + AFTER):
            self._step(step)
            if step + 1 in (1, BEFORE, BEFORE + AFTER):
                self._predict(step + 1)
            if step + 1 == BEFORE:
                self.middle = State.of(self.plain)
        self.end = State.of(self.plain)

    def _step(self, step: int) -> None:
        self.task.draws.taken()
        slices = [batches.chunks(self._slice(step, replica), self.parts) for replica in range(self.replicas)]
        self.work.append([])
        loss = self.plain.step(slices, self.task.learning_rate(step), self.work[-1])
        self.losses.append(float(loss) / self.task.scale)
        self.drawn.append(self.task.draws.taken())

    def _slice(self, step: int, replica: int) -> Batch:
        return self.data.batch(self.task, step, replica, self.replicas)

    def _predict(self, after: int) -> None:
        """Outputs of every slice, by the replica's own statistics and by the first one's."""
        self.outputs[after] = [
            [self.plain.predicted(self._slice(PREDICTED, replica), of) for of in {replica, 0}]
            for replica in range(self.replicas)
        ]
        self.predicting[after] = self.task.draws.taken()

    def statistics_of(self, replica: int) -> Statistics:
        """A replica's buffers at the end of a training that no checkpoint has interrupted."""
        return self.plain.statistics[replica] if self.plain.statistics else self.end.buffers
