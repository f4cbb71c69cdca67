"""A plain training in one process: what every strategy has to compute.

The one engine of all proofs: references and own batches train with it, the gate repeats a strategy's training with it,
and spot checks compute a run's steps again. Of the strategies it uses only how a checkpoint is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relay.equivalence.figures import leaves_of
from relay.process.ranks import Ranks
from relay.run_folder import stalled
from relay.spec.requirements import Requirements
from relay.spec.run import Training
from relay.strategies.base import Strategy
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import FIRST_SCALE, BoundTask
from relay.task.calls import on_device
from relay.task.learning_rate import set_learning_rate
from relay.task.modes import Work
from relay.task.recompute import StatisticsKept

Tensors = dict[str, torch.Tensor]
Statistics = dict[str, torch.Tensor]  # BatchNorm's, of one replica: the model's buffers by name


def deterministic() -> None:
    """Compute alike in every process of a proof.

    Attention has a fast path for evaluation, which calls no submodule and rounds otherwise: not what training calls.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.mha.set_fastpath_enabled(False)


@dataclass
class State:
    """What training changes: tensors by name, on the device. `optimizer`: "momentum_buffer of conv1.weight", …

    Tied parameters are there under each of their names.
    """

    parameters: Tensors
    buffers: Tensors
    optimizer: Tensors
    loss_scale: float

    @classmethod
    def of(cls, plain: Plain) -> State:
        """A copy, with the first replica's buffers, which a checkpoint holds for others to load."""
        plain.use_statistics(0)
        names = {id(parameter): name for name, parameter in plain.model.named_parameters()}
        buffers = {name for name, _ in plain.model.named_buffers()}
        whole = {name: tensor.detach().clone() for name, tensor in plain.model.state_dict().items()}
        held = {
            f"{kind} of {names[id(parameter)]}": torch.as_tensor(value).detach().clone()
            for parameter, state in plain.optimizer.state.items()
            if id(parameter) in names  # an optimizer of one's own may keep more there
            for kind, value in state.items()
            if isinstance(value, (torch.Tensor, int, float))
        }
        return cls(
            {name: tensor for name, tensor in whole.items() if name not in buffers},
            {name: tensor for name, tensor in whole.items() if name in buffers},
            held,
            float(plain.scaler.get_scale()),
        )

    @property
    def model(self) -> Tensors:
        """Parameters and buffers."""
        return self.parameters | self.buffers


class _Whole(Strategy):
    """The whole model and its optimizer in this process, for a checkpoint to be read into; its steps are not used."""

    requirements = Requirements(processes="one", divides=())

    def build(self, **options: Any) -> None:
        self.build_whole()
        if self.scaler is not None:
            self.scaler = torch.amp.GradScaler(self.ranks.device.type, init_scale=FIRST_SCALE)


@dataclass
class Plain:
    """A model, its optimiser and, in fp16, the loss's scale, trained one step after the other.

    `statistics` are the model's buffers (BatchNorm's statistics), one set for each replica. They stay empty where one
    replica computes everything, because the model's own buffers are then enough.
    With `copies`, copies of the model compute the parts of a slice, and only the first one's statistics stay. With
    `alike`, every replica begins each step with the first one's, as under DDP."""

    task: BoundTask
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    statistics: list[Statistics] = field(default_factory=list)
    copies: bool = False
    alike: bool = False

    @classmethod
    def of(cls, task: BoundTask, device: torch.device, replicas: int = 1) -> Plain:
        """The training before its first step. `replicas`: how many sets of statistics it has."""
        task = task.apart()
        model = on_device(task.model(), device)
        scaler = torch.amp.GradScaler(device.type, init_scale=FIRST_SCALE, enabled=task.precision == "fp16")
        plain = cls(task, model, task.optimizer(model.parameters()), scaler)
        if replicas > 1:
            plain.statistics = [{name: b.clone() for name, b in model.named_buffers()} for _ in range(replicas)]
        return plain

    @classmethod
    def read(cls, task: BoundTask, ranks: Ranks, global_batch_size: int, folder: Path) -> Plain:
        """The training as a strategy saved it. Raises CheckpointException where the checkpoint is not complete."""
        whole = _Whole(task, ranks, global_batch_size, {})
        whole.load(folder)
        scaler = whole.scaler or torch.amp.GradScaler(ranks.device.type, enabled=False)
        return cls(task, whole.model, whole.optimizer, scaler)

    def step(
        self, slices: Sequence[Sequence[Batch]], learning_rate: float, counted: list[tuple[int, int]] | None = None
    ) -> torch.Tensor:
        """Train one step; the batch's mean loss, a scalar in float64 on the CPU.

        `slices` are the batch, cut into a slice for each replica, and each slice into parts, such as micro-batches.
        Parts are computed one after the other, and their gradients are summed: the same training as with the whole
        batch at once, but for rounding and the statistics. `counted` gets each slice's operations, all and forward.
        """
        stalled.further()
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.zero_grad()
        samples = sum(batches.count(part) for parts in slices for part in parts)
        if self.alike:
            self.statistics = copies([self.statistics[0] for _ in self.statistics])
        total, work = torch.zeros((), dtype=torch.float64), Work()
        with nullcontext() if counted is None else work.counting(), self.task.computing():
            for replica, parts in enumerate(slices):
                self.use_statistics(replica)
                for number, part in enumerate(parts):
                    with StatisticsKept(self.model) if self.copies and number else nullcontext():
                        loss = self.task.loss(self.task.outputs(self.model, part), part)
                        loss = loss * (batches.count(part) / samples)
                        self.scaler.scale(loss).backward()
                    total += loss.detach().double().cpu()
                if counted is not None:
                    counted.append(work.taken())
            if self.task.own.clip_grad_norm is not None:
                self.scaler.unscale_(self.optimizer)
                self.task.clip(self.optimizer)
            self.scaler.step(self.optimizer)
        self.scaler.update()
        return total

    @torch.no_grad()
    def predict(self, batch: Batch, replica: int = 0) -> Any:
        """Outputs in evaluation mode, by a replica's statistics."""
        self.use_statistics(replica)
        self.model.eval()
        with self.task.computing():
            outputs = self.task.outputs(self.model, batch)
        self.model.train()
        return outputs

    def predicted(self, batch: Batch, replica: int = 0, *, whole: bool = False) -> list[torch.Tensor]:
        """What proofs compare of these outputs, as `leaves_of` has it."""
        return leaves_of(self.predict(batch, replica), self.task.spec.card.compared_along, whole=whole)

    def use_statistics(self, replica: int) -> None:
        """Let the model compute with a replica's statistics, which it updates in place."""
        if not self.statistics:
            return
        for name, buffer in self.statistics[replica].items():
            path, _, last = name.rpartition(".")
            self.model.get_submodule(path)._buffers[last] = buffer


def declared_parts(run: Training, requirements: Requirements) -> int:
    """In how many parts, one after the other, a rank of this strategy works through its slice."""
    options = {**requirements.options, **run.strategy.options}
    return math.prod(int(options[name]) for name in requirements.whole_batches if name in options)


@torch.no_grad()
def move(model: nn.Module, seed: int, size: Callable[[torch.Tensor], torch.Tensor | float]) -> None:
    """Move each parameter by what `size` says of it, up or down at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        signs = torch.randint(0, 2, parameter.shape, generator=generator, dtype=parameter.dtype) * 2 - 1
        parameter.add_(signs.to(parameter.device) * size(parameter))


def one_unit(parameter: torch.Tensor) -> torch.Tensor:
    """One unit in the last place of each number: how far rounding moves it at least."""
    return parameter * torch.finfo(parameter.dtype).eps


def copies(statistics: Sequence[Statistics]) -> list[Statistics]:
    """A copy of each replica's."""
    return [{name: buffer.clone() for name, buffer in own.items()} for own in statistics]
