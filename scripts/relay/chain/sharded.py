"""What is sharded over ranks, by torch.distributed.checkpoint: each rank writes its own shards.

Only tensors are written so. All else of a state would be read back with pickle: of a script with FSDP2, it lies in the
ranks' own files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from .state import State, parameters, unreadable
from .telling import ChainError

SHARDED = "sharded"
# Flat names let ranks hold different parts of the optimizer.
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
# With one alone torch writes by way of a CUDA stream, although all is in host memory by then: in a thread, which would
# take the first GPU for its own and make a context there, whichever is this rank's.
_WRITERS = 2
# torch 2.5 writes tensors in host memory while the training changes them; 2.8 was seen to copy them first.
COPIES_HOST_TENSORS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


def tensors_of(module: nn.Module, optimizers: Sequence[Optimizer]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a module and of its optimizers, by flat names. Collective. Never before the first step.

    torch's `get_state_dict` makes a step of zero gradients where an optimizer has no state yet.
    """
    model, optimizer = get_state_dict(module, optimizers, options=_FLAT)
    return model, {name: value for name, value in optimizer.items() if name.startswith("state.")}


def begin(state: dict[str, Any], place: Path, group: ProcessGroup | None) -> Future[Any]:
    """Begin to write tensors into `place`; returns once all are copied. Collective, on the group."""
    if not COPIES_HOST_TENSORS:  # those of GPUs are left to torch, which copies them
        state = tree_map_only(torch.Tensor, lambda each: each.clone() if each.device.type == "cpu" else each, state)
    writer = dcp.FileSystemWriter(place, thread_count=_WRITERS)
    writing = dcp.async_save(state, storage_writer=writer, process_group=group)
    assert isinstance(writing, Future)  # it is another kind only with a stager of one's own
    return writing


def load(
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    place: Path,
    saved: Mapping[str, Any],
    group: ProcessGroup | None,
    name: str = "",
) -> None:
    """Load a module and its optimizers from what `begin` has written, where they may have a `name`. Collective.

    `saved` says what is there.
    """
    model, optimizer = get_state_dict(module, optimizers, options=_FLAT)
    # A parameter that never had a gradient has no state.
    its_state = f"{name}.optimizer.state." if name else "optimizer.state."
    stateless = {
        key: parameter
        for key, parameter in module.named_parameters()
        if not any(each.startswith(f"{its_state}{key}.") for each in saved)
    }
    unsaved = ("param_groups.", *(f"state.{key}." for key in stateless))
    tensors = {key: value for key, value in optimizer.items() if not key.startswith(unsaved)}
    parts = {"model": model, "optimizer": tensors}
    reader = dcp.FileSystemReader(place)
    dcp.load({name: parts} if name else parts, storage_reader=reader, process_group=group)
    set_state_dict(module, optimizers, model_state_dict=model, optim_state_dict=optimizer | tensors, options=_FLAT)
    for parameter in stateless.values():
        for each in optimizers:
            each.state.pop(parameter, None)


class Sharded:
    """The sharded modules of a state, each with its optimizers."""

    def __init__(self, state: State) -> None:
        self.parts = {
            name: (module, [state.optimizers[each] for each in state.sharded if _trains(state, each, module)])
            for name, module in state.modules.items()
            if name in state.sharded
        }
        self.group = state.ranks.saving

    def begin(self, place: Path) -> Future[Any]:
        """Begin to write into `place`; returns once everything is copied. Collective. Never before the first step."""
        pairs = {name: tensors_of(*part) for name, part in self.parts.items()}
        state = {name: {"model": model, "optimizer": optimizer} for name, (model, optimizer) in pairs.items()}
        return begin(state, place / SHARDED, self.group)

    @staticmethod
    def check(place: Path) -> Mapping[str, Any]:
        """What is said of the tensors that `begin` has written. Raises ChainError where torch cannot read it."""
        try:
            tensors: Mapping[str, Any] = dcp.FileSystemReader(place / SHARDED).read_metadata().state_dict_metadata
        except Exception as error:
            raise ChainError(f"{place / SHARDED} cannot be read: {unreadable(error)}") from None
        return tensors

    def load(self, place: Path) -> None:
        """Load what `begin` has written. Collective."""
        saved = self.check(place)
        for name, (module, optimizers) in self.parts.items():
            load(module, optimizers, place / SHARDED, saved, self.group, name)


def _trains(state: State, name: str, module: nn.Module) -> bool:
    own = {id(parameter) for parameter in module.parameters()}
    optimizer: Optimizer | None = state.optimizers.get(name)
    return optimizer is not None and any(id(each) in own for each in parameters(optimizer))
