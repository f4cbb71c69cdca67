"""How a strategy's checkpoint is written and read, by torch's distributed checkpoints, under the reference's names."""

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from relay.chain import sharded
from relay.process.ranks import Ranks
from relay.task.learning_rate import FACTOR

# Where a checkpoint has what the optimizer has added to a group, by the names of the group's parameters.
NUMBERS = "optimizer.param_groups"


class Replica(NamedTuple):
    """Which slice of each global batch a process consumes.

    `reports`: the slice's loss and outputs end up in this process; it is true in exactly one process per replica.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a replica
    count: int  # type: ignore[assignment]
    reports: bool = True


class Checkpoints:
    """The part of a strategy that saves and loads."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    replica: Replica
    ranks: Ranks
    scaler: torch.amp.GradScaler | None

    def save(self, directory: Path) -> Future[Any]:
        """Begin to write model, optimizer and scaler into the directory; all that is written is copied before it
        returns, and the future tells the end. Collective, on `ranks.saving`. Never before the first step.

        torch's `get_state_dict` initialises an optimizer without state by a step of zero gradients, which changes
        what AdamW, or SGD with weight decay and momentum, does next.
        """
        numbers = added(self.optimizer)
        model, tensors = sharded.tensors_of(self.model, [self.optimizer])
        for group, its in zip(self.optimizer.param_groups, numbers, strict=True):
            group |= its  # that step has counted, too, where there never is a state
        return self.write(directory, model, tensors)  # learning rates and the like are the task's

    def write(self, directory: Path, model: dict[str, Any], optimizer: dict[str, Any]) -> Future[Any]:
        """Begin to write a checkpoint of these tensors, under the reference's names. Ranks may each have a part.

        What the optimizer counts in its groups stands beside its state, once for each parameter of a group.
        """
        own = self._own_buffers()
        groups = zip(self.names_of_groups(), added(self.optimizer), strict=True)
        numbers = {
            f"{name}.{key}": torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
            for names, of_group in groups
            for key, value in of_group.items()
            for name in names
        }
        if self.replica.index > 0:  # what others load has one replica's statistics, not some of each
            model = {name: tensor for name, tensor in model.items() if name not in own}
        state = {"model": model, "optimizer": optimizer, NUMBERS: numbers, "scaler": self._scaler_state()}
        state |= self.further_state()
        state |= {self.own_place("buffers"): own} if own else {}
        return sharded.begin(state, directory, self.ranks.saving)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote, under any strategy. Collective. Raises CheckpointException where it does not fit."""
        saved = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        self.load_training(directory, saved)
        own_buffers = self.own_place("buffers")
        # The rest has the shapes that it was saved with; a part that is not there is empty.
        parts: dict[str, dict[str, torch.Tensor]] = {
            place: {
                key.removeprefix(f"{place}."): torch.empty(about.size, dtype=about.properties.dtype)
                for key, about in saved.items()
                if key.startswith(f"{place}.") and isinstance(about, TensorStorageMetadata)
            }
            for place in (NUMBERS, "scaler", own_buffers, *self.further_state())
        }
        dcp.load(parts, checkpoint_id=directory, process_group=self.ranks.saving)
        numbers, scaler, buffers = (parts.pop(place) for place in (NUMBERS, "scaler", own_buffers))
        for group, names in zip(self.optimizer.param_groups, self.names_of_groups(), strict=True):
            of_group = tuple(f"{name}." for name in names)
            group |= {key.rpartition(".")[2]: its.item() for key, its in numbers.items() if key.startswith(of_group)}
        own = self._own_buffers()
        for name, buffer in own.items() if own.keys() <= buffers.keys() else ():
            if buffer.shape != buffers[name].shape:
                raise CheckpointException(f"buffer {name} is saved with another shape: {[*buffers[name].shape]}", {})
            buffer.copy_(buffers[name])
        if self.scaler and scaler:
            growth = {"scale": scaler["scale"].item(), "_growth_tracker": scaler["growth_tracker"].item()}
            self.scaler.load_state_dict(self.scaler.state_dict() | growth)
        self.load_further_state(parts)

    def load_training(self, directory: Path, saved: Mapping[str, Any]) -> None:
        """Read the model and the optimizer's state. `saved` says what the checkpoint has. Collective."""
        sharded.load(self.model, [self.optimizer], directory, saved, self.ranks.saving)

    def names_of_groups(self) -> list[list[str]]:
        """The names of the parameters in each of the optimizer's groups."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [[names[id(parameter)] for parameter in group["params"]] for group in self.optimizer.param_groups]

    def further_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """What else a checkpoint holds: tensors by name, under places of the strategy's own."""
        return {}

    def load_further_state(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Take back what `further_state` gave, on the CPU; a place that the checkpoint has not is empty."""

    def _own_buffers(self) -> dict[str, torch.Tensor]:
        """The model's buffers: BatchNorm's statistics are those of each replica."""
        kept = self.model.state_dict().keys()
        return {name: buffer for name, buffer in self.model.named_buffers() if name in kept}

    def own_place(self, kind: str) -> str:
        """Where a checkpoint has what this rank alone has of a kind, such as its buffers."""
        return f"{kind}-{self.ranks.rank}-of-{self.ranks.world_size}"

    def _scaler_state(self) -> dict[str, torch.Tensor]:
        """What changes of fp16's scaler, as tensors; nothing in other precisions."""
        if self.scaler is None:
            return {}
        held = self.scaler.state_dict()
        return {
            "scale": torch.tensor(held["scale"], dtype=torch.float64),
            "growth_tracker": torch.tensor(held["_growth_tracker"]),
        }


def added(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The numbers of each group that the optimizer has put there in its steps, such as their count.

    What is declared is the task's, as the learning rate is: no checkpoint holds it.
    """
    declared = {*optimizer.defaults, "lr", FACTOR}
    return [
        {key: value for key, value in group.items() if key not in declared and isinstance(value, (bool, int, float))}
        for group in optimizer.param_groups
    ]
