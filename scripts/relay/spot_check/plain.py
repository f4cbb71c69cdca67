"""The next steps of a run, computed from a state that it saved, in one process and a plain loop.

Only the reading of the checkpoint is the strategies' own (`Strategy.load`, the same for all of them).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from relay.equivalence.plain import Plain
from relay.process import machine
from relay.process.ranks import Ranks
from relay.run_folder.spots import Spot, Spots
from relay.spec import requirements
from relay.spec.requirements import Requirements
from relay.spec.run import Run
from relay.spot_check import statistics
from relay.spot_check.statistics import Statistics
from relay.spot_check.streams import Streams
from relay.strategies.base import Strategy
from relay.task.data import Batch, Mapped, Split, batch_indices
from relay.task.network import Network
from relay.task.task import FIRST_SCALE, Task

# Rounding can switch a unit on or off (ReLU, maximum), which moves all later losses by a jump: seldom, but the right
# strategy that it happens to may not be the plain loop's. With so much more noise it happens there as well.
FOLLOWING_NOISE = 64


class Whole(Strategy):
    """The whole model and its optimizer in this process, for a checkpoint to be read into; its steps are not used."""

    requirements = Requirements(processes="one", divides=())

    def build(self, **options: Any) -> None:
        self.build_whole()
        if self.scaler is not None:
            self.scaler = torch.amp.GradScaler(self.ranks.device.type, init_scale=FIRST_SCALE)

    @classmethod
    def read(cls, task: Task, ranks: Ranks, global_batch_size: int, state: Path) -> Whole:
        """The model and optimizer of a saved state. Raises CheckpointException where it is not complete."""
        made = cls(task, ranks, global_batch_size, {})
        made.load(state / "strategy")
        return made

    @property
    def loss_scale(self) -> float:
        """By which fp16's loss is multiplied; 1 in other precisions."""
        return float(self.scaler.get_scale()) if self.scaler else 1.0


@dataclass
class State:
    """What training changes: tensors by name, on the device. `optimizer` is by parameter and kind of state."""

    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, torch.Tensor]]
    loss_scale: float

    @classmethod
    def of(cls, whole: Whole) -> State:
        """A copy of the model's and the optimizer's state."""
        parameters = dict(whole.model.named_parameters())
        held = {name: whole.optimizer.state.get(parameter, {}) for name, parameter in parameters.items()}
        return cls(
            {name: parameter.detach().clone() for name, parameter in parameters.items()},
            {name: buffer.clone() for name, buffer in whole.model.named_buffers()},
            {
                name: {kind: value.clone() for kind, value in state.items() if torch.is_tensor(value)}
                for name, state in held.items()
            },
            whole.loss_scale,
        )


Masks = Literal["none", "the run's", "others"]


@dataclass
class Computed:
    """A stretch of steps as the plain loop computed it: each step's loss, and the states before and after.

    `masks`: whether random numbers were drawn, as dropout does, and whether they were those of the run.
    """

    losses: list[float]
    before: State
    after: State
    masks: Masks
    followed: list[float] = field(default_factory=list)  # losses of the steps that follow the stretch
    # Of each of several replicas its statistics before, after, and after where the last step began with the first's.
    replicas: list[tuple[Statistics, Statistics, Statistics]] = field(default_factory=list)


class Division:
    """How the run's ranks divided a batch: slices for the replicas, and each slice in parts, one after the other."""

    def __init__(self, run: Run, spots: Spots) -> None:
        self.run, self.spots = run, spots
        file = Path(run.strategy.file)
        self.copies = file.is_file() and requirements.read(file).copies_model
        ranks_of: dict[int, list[int]] = {}
        for rank, (index, _) in enumerate(spots.replicas):
            ranks_of.setdefault(index, []).append(rank)
        self.ranks_of = [ranks_of[index] for index in sorted(ranks_of)]
        self.reporting = [next(rank for rank in ranks if spots.replicas[rank][1]) for ranks in self.ranks_of]

    @property
    def replicas(self) -> int:
        """Slices of each global batch."""
        return len(self.ranks_of)

    def parts(self, step: int, replica: int, size: int) -> list[int] | None:
        """The sizes of the parts of a replica's slice; None where what was seen is no division of it."""
        seen = self.spots.seen
        # Of a step that only a killed job has trained nothing is known: as in another one.
        known = seen.get(step) or next(iter(seen.values()), None)
        sizes = known.parts[self.reporting[replica]] if known else []
        if self.copies and sizes == [size]:  # the loss is that of all copies together
            sizes = list(map(len, torch.empty(size).chunk(self.run.shape.devices_per_process)))
        return sizes if sum(sizes) == size else None

    def owners(self, replica: int, layers: list[str]) -> dict[str, int] | None:
        """The rank that draws the random numbers of each of these layers, all in one go; None where that is not known.

        It is known where a process computes all layers, or some that follow each other, on one device.
        """
        ranks, held = self.ranks_of[replica], self.spots.layers
        if self.run.shape.devices_per_process > 1 or self.run.computation.compile:
            return None  # compiled code draws in ways of its own
        if len(ranks) == 1:
            return dict.fromkeys(layers, ranks[0])
        owners = {name: rank for rank in ranks for name in held[rank]}
        places = [[layers.index(name) for name in held[rank] if name in layers] for rank in ranks]
        apart = sum(map(len, places)) == len(layers) == len(owners)
        together = all(place == list(range(place[0], place[-1] + 1)) for place in places if place)
        return owners if apart and together else None


class Loop:
    """Computes steps of one run."""

    def __init__(self, run: Run, dataset: Path, ranks: Ranks) -> None:
        self.run, self.ranks = run, ranks
        self.task = replace(Task.of(run), compiled=False)  # compiling would take longer than the steps
        split = Split(dataset, "train", run.task)
        self.count = len(split)
        self.feeder = Mapped(split, ranks.device, self.task.dtype)  # the same bits as both loaders

    def read(self, state: Path, task: Task | None = None) -> Whole:
        """The model and optimizer of a saved state."""
        return Whole.read(task or self.task, self.ranks, self.run.batch.global_batch_size, state)

    def compute(
        self,
        state: Path,
        spot: Spot,
        division: Division,
        streams: Streams,
        *,
        noise: float = 0.0,
        precision: str | None = None,
        following: int = 0,
    ) -> Computed:
        """The spot's steps, from the saved state on, and the losses of so many steps `following` it.

        To see how far rounding goes, `noise` first changes the parameters at random by so much, relative to each; and
        `precision` is another one than the run's. Before the steps that follow, noise is larger.
        """
        task = replace(self.task, precision=precision or self.task.precision)
        machine.set_precision(task.precision)
        whole = self.read(state, task)
        if noise:
            _disturb(whole.model, noise)
        before, model = State.of(whole), cast(Network, whole.model)
        scaler = whole.scaler or torch.amp.GradScaler(self.ranks.device.type, enabled=False)
        plain = Plain(task, model, whole.optimizer, scaler, copies=division.copies)
        if division.replicas > 1:
            world_size = self.run.shape.world_size
            plain.statistics = statistics.saved(state, model, division.ranks_of, world_size, self.ranks.saving)
        layers, losses = [name for name, _ in model.named_children()], []
        began, further = statistics.copies(plain.statistics), replace(spot, last=spot.last + following)
        for step, slices in zip(range(spot.first, further.last), self._slices(further, division), strict=True):
            owners = [
                division.owners(replica, layers) or dict.fromkeys(layers, division.reporting[replica])
                for replica, parts in enumerate(slices)
                for _ in parts
            ]
            own_of = statistics.copies(plain.statistics)
            with streams.drawn(model, owners):
                losses.append(float(plain.step(slices, self.task.learning_rate(step))))
            if step == spot.last - 1:
                after, ended = State.of(whole), statistics.copies(plain.statistics)
                after.buffers = ended[0] if ended else after.buffers  # a checkpoint has the first replica's
                from_firsts = statistics.from_the_firsts(model, own_of, ended, [len(parts) for parts in slices])
                if noise:
                    _disturb(model, FOLLOWING_NOISE * noise)
        count, masks = spot.last - spot.first, self._masks(division, layers, streams.moved)
        replicas = [*zip(began, ended, from_firsts, strict=True)]
        return Computed(losses[:count], before, after, masks, losses[count:], replicas)

    def _masks(self, division: Division, layers: list[str], moved: bool) -> Masks:
        if not moved:
            return "none"
        known = all(division.owners(replica, layers) for replica in range(division.replicas))
        return "the run's" if known else "others"

    def _slices(self, spot: Spot, division: Division) -> Iterator[list[list[Batch]]]:
        """For each step the replicas' slices of its global batch, each in its parts."""
        batch, seed = self.run.batch.global_batch_size, self.run.seed
        steps = [batch_indices(self.count, batch, seed, step) for step in range(spot.first, spot.last)]
        batches = self.feeder.batches(samples for indices in steps for samples in indices.chunk(division.replicas))
        for step in range(spot.first, spot.last):
            yield [_cut(next(batches), division, step + 1, replica) for replica in range(division.replicas)]


def _cut(slice_: Batch, division: Division, step: int, replica: int) -> list[Batch]:
    """A replica's slice in the parts in which the run computed it; in one, where these are not known."""
    inputs, targets = slice_
    sizes = division.parts(step, replica, len(targets)) or [len(targets)]
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def _disturb(model: nn.Module, noise: float) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            random = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
            parameter.mul_((1 + noise * random.to(parameter.device)).to(parameter.dtype))
