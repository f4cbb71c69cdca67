"""What is sharded over ranks (FSDP2), by torch.distributed.checkpoint: each rank writes its own shards.

Only tensors are written so. All else of a state would be read back with pickle; it lies in the ranks' own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.optim import Optimizer

from .state import State, parameters, unreadable
from .telling import ChainError

SHARDED = "sharded"
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


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
        """Begin to write into `place`; returns once everything is copied. Collective. Never before the first step.

        torch's `get_state_dict` makes a step of zero gradients where an optimizer has no state yet.
        """
        state = {}
        for name, (module, optimizers) in self.parts.items():
            model, optimizer = get_state_dict(module, optimizers, options=_FLAT)
            tensors = {key: value for key, value in optimizer.items() if key.startswith("state.")}
            state[name] = {"model": model, "optimizer": tensors}
        writer = dcp.FileSystemWriter(place / SHARDED)
        writing = dcp.async_save(state, storage_writer=writer, process_group=self.group)
        assert isinstance(writing, Future)  # it is another kind only with a stager of one's own
        return writing

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
            model, optimizer = get_state_dict(module, optimizers, options=_FLAT)
            # A parameter that never had a gradient has no state.
            without = {
                key: parameter
                for key, parameter in module.named_parameters()
                if not any(each.startswith(f"{name}.optimizer.state.{key}.") for each in saved)
            }
            ignored = ("param_groups.", *(f"state.{key}." for key in without))
            tensors = {key: value for key, value in optimizer.items() if not key.startswith(ignored)}
            loaded = {name: {"model": model, "optimizer": tensors}}
            dcp.load(loaded, storage_reader=dcp.FileSystemReader(place / SHARDED), process_group=self.group)
            set_state_dict(
                module, optimizers, model_state_dict=model, optim_state_dict=optimizer | tensors, options=_FLAT
            )
            for parameter in without.values():
                for each in optimizers:
                    each.state.pop(parameter, None)


def _trains(state: State, name: str, module: nn.Module) -> bool:
    own = {id(parameter) for parameter in module.parameters()}
    optimizer: Optimizer | None = state.optimizers.get(name)
    return optimizer is not None and any(id(each) in own for each in parameters(optimizer))
