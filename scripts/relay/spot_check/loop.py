"""The next steps of a run, computed from a state that it saved, in one process."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

import torch
import torch.distributed.checkpoint as dcp

from relay.base.grouped import gathered
from relay.equivalence.plain import Plain, State, Statistics, copies, declared_parts, move
from relay.process import machine
from relay.process.ranks import Ranks
from relay.run_folder.spots import Spot, Spots
from relay.spec import strategy_files
from relay.spec.requirements import Requirements
from relay.spec.run import Run
from relay.spot_check.streams import WHOLE, Streams
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.data import Mapped
from relay.task.lowered import computed_in
from relay.task.split import chosen

# Rounding can switch a unit on or off (ReLU, maximum), which moves all later losses by a jump: seldom, but the right
# strategy that it happens to may not be the plain loop's. With so much more noise it happens there as well.
FOLLOWING_NOISE = 64


Masks = Literal["none", "the run's", "others"]


@dataclass
class Recorded:
    """What a run recorded of a stretch of steps: each step's loss, and the state after it.

    `statistics` are those of each of several replicas then.
    """

    losses: list[float]
    after: State
    statistics: list[Statistics]


@dataclass
class Computed(Recorded):
    """A stretch of steps as the plain loop computed it, with the state before.

    `masks`: whether random numbers were drawn, as dropout does, and whether they were those of the run.
    """

    before: State
    masks: Masks
    followed: list[float] = field(default_factory=list)  # losses of the steps that follow the stretch
    began: list[Statistics] = field(default_factory=list)  # each replica's before


class Division:
    """How the run's ranks divided a batch: slices for the replicas, and each slice in parts, one after the other."""

    def __init__(self, run: Run, spots: Spots) -> None:
        self.run, self.spots = run, spots
        file = Path(run.strategy.file)
        needs = strategy_files.read(file) if file.is_file() else Requirements()
        self.copies, self.declared = needs.copies_model, declared_parts(run, needs)
        ranks_of = gathered((index, rank) for rank, (index, _) in enumerate(spots.replicas))
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
        of_step = seen.get(step) or next(iter(seen.values()), None)
        sizes = of_step.parts[self.reporting[replica]] if of_step else []
        if self.copies and sizes == [size]:  # the loss is that of all copies together
            sizes = list(map(len, torch.empty(size).chunk(self.run.shape.devices_per_process)))
        return sizes if sum(sizes) == size else None

    def is_known(self, spot: Spot) -> bool:
        """Whether it is known how the slices of each of a spot's steps were divided."""
        size = self.run.batch.global_batch_size // self.replicas
        steps = range(spot.first + 1, spot.last + 1)
        whole = all(self.parts(step, each, size) for step in steps for each in range(self.replicas))
        return whole and (self.copies or self.run.shape.devices_per_process == 1)

    def strays(self, spot: Spot) -> str | None:
        """The first step in which others than the samples of the global batch have reached the loss, or in more parts
        than the strategy declares, where BatchNorm takes its statistics of each part."""
        expected = self.run.batch.global_batch_size
        for step in range(spot.first + 1, spot.last + 1):
            seen = self.spots.seen.get(step)
            count = sum(sum(seen.parts[rank]) for rank in self.reporting) if seen else expected
            if count != expected:
                return f"{count} samples reached the task's loss in step {step}; its batch has {expected}"
            parts = max((len(seen.parts[rank]) for rank in self.reporting), default=1) if seen else 1
            if parts > self.declared and self.run.task.card.batch_norm:
                return (
                    f"a slice was worked through in {parts} parts in step {step}, and BatchNorm takes its statistics "
                    f"of each; declared are {self.declared} (`whole_batches`)"
                )
        return None

    def owners(self, replica: int, layers: list[str]) -> dict[str, int] | None:
        """The rank that draws the random numbers of each of these modules, all in one go; None where that is not known.

        It is known where a process computes the whole model, or modules that follow each other, on one device.
        """
        ranks, held = self.ranks_of[replica], self.spots.layers
        if self.run.shape.devices_per_process > 1 or self.run.computation.compile:
            return None  # compiled code draws in ways of its own
        if len(ranks) == 1:
            return {WHOLE: ranks[0]}
        owners = {name: rank for rank in ranks for name in held[rank]}
        places = [[layers.index(name) for name in held[rank] if name in layers] for rank in ranks]
        apart = sum(map(len, places)) == len(layers) == len(owners)
        together = all(place == list(range(place[0], place[-1] + 1)) for place in places if place)
        return owners if apart and together else None


class Loop:
    """Computes steps of one run, from the states in its folder, divided as its ranks have divided them."""

    def __init__(self, run: Run, dataset: Path, ranks: Ranks, states: Path, spots: Spots) -> None:
        self.run, self.ranks, self.states, self.division = run, ranks, states, Division(run, spots)
        self.task = replace(BoundTask.of(run, dataset), compiled=False)  # compiling would take longer than the steps
        self.feeder = Mapped(self.task.split("train"), ranks.device)  # the same bits as both loaders

    @cached_property
    def computed_in(self) -> str:
        """The precision whose rounding the run has: its own, or a lower one to which the task's code turns."""
        return computed_in(self.task, self.ranks.device)

    def state(self, step: int) -> Path:
        """The folder of the state after a step."""
        return self.states / f"step-{step}"

    def read(self, step: int, task: BoundTask | None = None) -> Plain:
        """The training after that step. Raises CheckpointException where its state is not complete."""
        state = self.state(step) / "strategy"
        return Plain.read(task or self.task, self.ranks, self.run.batch.global_batch_size, state)

    def statistics(self, step: int, plain: Plain) -> list[Statistics]:
        """Each replica's own, as its ranks have saved them with the state after that step.

        `plain` was read from that state: its model has those of the first one.
        """
        buffers = {name: buffer.clone() for name, buffer in plain.model.named_buffers()}
        statistics, place = copies([buffers] * self.division.replicas), self.state(step) / "strategy"
        there = dcp.FileSystemReader(place).read_metadata().state_dict_metadata if buffers else {}
        for own, ranks in zip(statistics, self.division.ranks_of, strict=True):
            for folder in (f"buffers-{rank}-of-{self.run.shape.world_size}" for rank in ranks):
                if wanted := {name: own[name] for name in own if f"{folder}.{name}" in there}:
                    dcp.load({folder: wanted}, checkpoint_id=place, process_group=self.ranks.saving)
        return statistics

    def compute(
        self,
        spot: Spot,
        *,
        seed: int | None = None,
        noise: float = 0.0,
        precision: str | None = None,
        following: int = 0,
        alike: bool = False,
    ) -> Computed:
        """The spot's steps, from the saved state on, and the losses of so many steps `following` it.

        To see how far rounding goes, `noise` first moves the parameters by half of it, relative to each; and
        `precision` is another one than the run's. Before the steps that follow, noise is larger. `alike`: that of
        `Plain`. Random numbers are the run's; with a `seed` others.
        """
        task = replace(self.task, precision=precision or self.task.precision)
        task.__dict__["own"] = self.task.own  # which may keep something of its datasets
        machine.set_precision(task.precision)
        plain, division, ranks = self.read(spot.first, task), self.division, self.run.shape.world_size
        streams = Streams.saved(self.run, self.state(spot.first)) if seed is None else Streams.fresh(seed, ranks)
        plain.copies, model = division.copies, plain.model
        if noise:
            move(model, 1, lambda parameter: noise / 2 * parameter)
        before = State.of(plain)
        plain.alike = alike
        if division.replicas > 1:
            plain.statistics = self.statistics(spot.first, plain)
        layers, losses = [name for name, _ in model.named_children()], []
        began, further = copies(plain.statistics), replace(spot, last=spot.last + following)
        for step, slices in zip(range(spot.first, further.last), self._slices(further), strict=True):
            owners = [
                division.owners(replica, layers) or {WHOLE: division.reporting[replica]}
                for replica, parts in enumerate(slices)
                for _ in parts
            ]
            with streams.drawn(model, owners):
                losses.append(float(plain.step(slices, self.task.learning_rate(step))))
            if step == spot.last - 1:
                after, statistics = State.of(plain), copies(plain.statistics)
                if noise:
                    move(model, 1, lambda parameter: FOLLOWING_NOISE * noise / 2 * parameter)
        count, masks = spot.last - spot.first, self._masks(layers, streams)
        return Computed(losses[:count], after, statistics, before, masks, losses[count:], began)

    def _masks(self, layers: list[str], streams: Streams) -> Masks:
        if not streams.moved and not streams.strayed:
            return "none"
        owners = (self.division.owners(replica, layers) for replica in range(self.division.replicas))
        return "the run's" if not streams.strayed and all(owners) else "others"

    def _slices(self, spot: Spot) -> Iterator[list[list[Batch]]]:
        """For each step the replicas' slices of its global batch, each in its parts."""
        count, batch, replicas = len(self.feeder.split), self.run.batch.global_batch_size, self.division.replicas
        for step in range(spot.first, spot.last):
            which = [chosen(count, batch, self.run.seed, step, each, replicas) for each in range(replicas)]
            slices = enumerate(self.feeder.batches(which))
            yield [_cut(slice_, self.division.parts(step + 1, each, batches.count(slice_))) for each, slice_ in slices]


def _cut(slice_: Batch, sizes: list[int] | None) -> list[Batch]:
    """A replica's slice in the parts in which the run computed it; in one, where these are not known."""
    ends = [*accumulate(sizes or [batches.count(slice_)])]
    return [batches.taken(slice_, slice(*ends)) for ends in pairwise([0, *ends])]
