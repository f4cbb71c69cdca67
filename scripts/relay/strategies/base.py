"""The contract of a strategy: it sets model, optimizer and replica, and overrides only what it does differently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from relay.data import Batch
from relay.ranks import Ranks
from relay.requirements import Requirements
from relay.task import Task

__all__ = ["Batch", "Ranks", "Replica", "Requirements", "Strategy", "Task"]

# Flat names let ranks hold different parts of the optimizer, and any strategy read another one's checkpoint.
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Replica(NamedTuple):
    """Which slice of each global batch this process consumes.

    `reports`: the slice's loss and outputs end up in this process; it is true in exactly one process per replica.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a replica
    count: int  # type: ignore[assignment]
    reports: bool = True


class Strategy:
    """How one task's training is parallelised over the run's processes.

    A subclass states `requirements` as a literal (the planner reads it from the file's text) and sets `model` (with
    the reference's parameter names), `optimizer` and `replica` in `build`.
    """

    requirements: ClassVar[Requirements]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    replica: Replica

    def __init__(self, task: Task, ranks: Ranks, global_batch_size: int, options: Mapping[str, Any]) -> None:
        self.task, self.ranks, self.global_batch_size = task, ranks, global_batch_size
        self.build(**{**self.requirements.options, **options})

    def build(self, **options: Any) -> None:
        """Set `model`, `optimizer` and `replica`; the only mandatory method."""
        raise NotImplementedError(f"{type(self).__name__} has no build()")  # abstract

    def build_whole(self) -> None:
        """What every data-parallel strategy starts from: the whole model on this rank's device, and its optimiser."""
        self.model = self.task.model().to(self.ranks.device)
        self.optimizer = self.task.optimizer(self.model.parameters())
        self.replica = Replica(self.ranks.rank, self.ranks.world_size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of this replica's slice. A wrapper takes this place (`self.forward = Wrapper(self.model)`)."""
        outputs: torch.Tensor = self.model(inputs)
        return outputs

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One optimiser step; the mean loss over the replica's slice, a scalar on the device, not synchronised."""
        self.optimizer.zero_grad()  # at the start, so that gradients can still be measured between steps
        loss = self.task.loss(self.forward(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def set_learning_rate(self, learning_rate: float) -> None:
        """The rate of the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def train(self, batches: Iterator[Batch], after_step: Callable[[torch.Tensor], bool]) -> None:
        """Step through the batches. `after_step(loss)` does all that happens between steps; True means stop here."""
        for inputs, targets in batches:
            if after_step(self.train_step(inputs, targets)):
                break

    @torch.no_grad()
    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of this replica's slice in evaluation mode; read only where `replica.reports`. Collective."""
        self.model.eval()
        outputs = self.forward(inputs)
        self.model.train()
        return outputs

    def whole_model(self) -> dict[str, torch.Tensor]:
        """The model's full state under the reference's names, on the CPU; only rank 0's is complete. Collective."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state: dict[str, torch.Tensor] = get_model_state_dict(self.model, options=options)  # type: ignore[assignment]
        return state

    def save(self, directory: Path) -> None:
        """Write model and optimizer into the directory. Collective. Never before the first step.

        torch's `get_state_dict` initialises an optimizer without state by a step of zero gradients, which changes
        what AdamW, or SGD with weight decay and momentum, does next.
        """
        model, optimizer = get_state_dict(self.model, self.optimizer, options=FLAT)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=directory)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote. Collective. Raises torch's CheckpointException where it does not fit."""
        model, optimizer = get_state_dict(self.model, self.optimizer, options=FLAT)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=directory)
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=FLAT)

    def footprint(self) -> dict[str, int]:
        """Bytes of parameters, gradients and optimizer state that this rank holds between steps."""
        parameters = list(self.model.parameters())
        state = [t for held in self.optimizer.state.values() for t in held.values() if torch.is_tensor(t) and t.dim()]
        return {
            "parameters": _local_bytes(parameters),
            "gradients": _local_bytes(p.grad for p in parameters if p.grad is not None),
            "optimizer": _local_bytes(state),
        }


def _local_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes on this rank: of a sharded tensor only the shard counts."""
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)
