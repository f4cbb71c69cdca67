"""What is saved and loaded: modules and optimizers once for all replicas, and of each rank what is its own."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Collection, Mapping
from itertools import chain, count
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .generators import Own
from .peers import Peers
from .telling import ChainError

REPLICATED = "replicated.pt"
LARGE_BYTES = 2**20  # a larger state of a thing is a replica, such as EMA's weights: rank 0's is everyone's


class State:
    """The things that the user handed over, by their names.

    `modules` and `optimizers` are alike on all ranks, or sharded by torch's DTensors. `further` is all else that has
    `state_dict` and `load_state_dict`: schedulers, scalers, averages, loaders; and dicts, each rank's own. Raises
    ChainError for what cannot be saved.
    """

    def __init__(self, things: Mapping[str, Any], ranks: Peers) -> None:
        self.ranks = ranks
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.further: dict[str, Any] = {}
        for name, thing in things.items():
            if isinstance(thing, nn.Module):
                self.modules[name] = thing
            elif isinstance(thing, Optimizer):
                self.optimizers[name] = thing
            elif isinstance(thing, dict):
                self.further[name] = Kept(thing)
            elif Own.holds(thing):
                self.further[name] = Own(thing)
            elif all(callable(getattr(thing, each, None)) for each in ("state_dict", "load_state_dict")):
                self.further[name] = thing
            elif not keeps_place(thing):
                raise ChainError(f"{name}={type(thing).__name__}: it has no state_dict and load_state_dict")
        if not self.modules:
            raise ChainError("no model was given; give it as model=…")
        for name, optimizer in self.optimizers.items():
            if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
                raise ChainError(f"{name}: no rank has the whole state of a ZeroRedundancyOptimizer; use fully_shard")
        for name, module in self.modules.items():
            _refuse(name, module)
            if extra := {key: own for key, own in module.state_dict().items() if not torch.is_tensor(own)}:
                _check_readable(name, extra)
        self.sharded = [name for name, module in self.modules.items() if any(map(is_sharded, module.parameters()))]
        self.sharded += [name for name, each in self.optimizers.items() if any(map(is_sharded, parameters(each)))]
        self.asked()

    def _shape(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Names and shapes of all that is saved, for the manifest: a checkpoint of another shape is not loaded."""
        things: dict[str, Any] = {}
        for name in self.modules:
            own = {key: list(value.shape) for key, value in states[name].items() if torch.is_tensor(value)}
            things[name] = {"kind": "module", "tensors": own}
        for name, optimizer in self.optimizers.items():
            names, trained = self._names(optimizer), parameters(optimizer)
            shapes = {key: list(each.shape) for key, each in zip(chain.from_iterable(names), trained, strict=True)}
            things[name] = {"kind": type(optimizer).__name__, "tensors": shapes, "groups": names}
        return things | {name: {"kind": type(thing).__name__, "tensors": {}} for name, thing in self.further.items()}

    def asked(self) -> dict[str, Any]:
        """The state of each thing by its name, of which `shape` tells. A script's own `state_dict` may be slow: a save
        asks for it once.

        Raises ChainError for what a training may have put into a state, and could not be read back.
        """
        every: dict[str, Any] = {**self.modules, **self.optimizers, **self.further}
        states = {name: thing.state_dict() for name, thing in every.items()}
        for name in (*self.optimizers, *self.further):
            _check_readable(name, groups(self.optimizers[name]) if name in self.optimizers else states[name])
        self.shape = self._shape(states)
        return states

    def replicas(self, states: Mapping[str, Any]) -> set[str]:
        """The things of `further` that are large on every rank: rank 0's is then everyone's. Collective."""
        kept = [isinstance(thing, Kept) for thing in self.further.values()]
        small = [own or size_bytes(states[name]) <= LARGE_BYTES for name, own in zip(self.further, kept, strict=True)]
        on_any = self.ranks.largest([float(each) for each in small])
        return {name for name, each in zip(self.further, on_any, strict=True) if not each}

    def _names(self, optimizer: Optimizer) -> list[list[str]]:
        """Of each of its groups the parameters' names. One that belongs to no module is known by its place alone."""
        names = {
            id(each): f"{name}.{key}"
            for name, module in self.modules.items()
            for key, each in module.named_parameters()
        }
        strange = count(1)
        return [
            [names.get(id(each)) or f"parameter {next(strange)} of no module" for each in group["params"]]
            for group in optimizer.param_groups
        ]

    def replicated(self, states: Mapping[str, Any], replicas: Collection[str]) -> dict[str, Any]:
        """A copy, in host memory, of what rank 0 saves for all."""
        names = [name for name in (*self.modules, *self.optimizers) if name not in self.sharded]
        return {name: copied(states[name]) for name in (*names, *replicas)}

    def own(self, states: Mapping[str, Any], replicas: Collection[str]) -> dict[str, Any]:
        """A copy, in host memory, of what each rank saves for itself."""
        several = self.modules if self.ranks.world_size > 1 else {}
        return {
            "further": {name: copied(states[name]) for name in self.further if name not in replicas},
            # They may differ between ranks, such as BatchNorm's statistics of each replica's batches.
            "buffers": {name: copied(own_buffers(each, states[name])) for name, each in several.items()},
            "groups": {name: copied(groups(self.optimizers[name])) for name in self.sharded if name in self.optimizers},
        }

    def load(self, replicated: Mapping[str, Any], own: Mapping[str, Any], there: Mapping[str, Any]) -> None:
        """Load a checkpoint's replicated part, and then this rank's own. Sharded tensors are loaded before.

        `there` is what `shape` told of it: an optimizer's parameters may have been in another order.
        """
        for name, module in self.modules.items():
            if name in replicated:
                module.load_state_dict(replicated[name])
        for name, optimizer in self.optimizers.items():
            if name in replicated:
                saved = in_order(replicated[name], there[name]["groups"], self._names(optimizer))
                optimizer.load_state_dict(saved)
                keep_dtypes(optimizer, saved)
        for name, saved in own["groups"].items():
            for group, values in zip(self.optimizers[name].param_groups, saved, strict=True):
                group |= values
        for name, thing in self.further.items():
            state = own["further"].get(name, replicated.get(name))
            if state is None:  # given for the first time, as was said
                continue
            try:
                thing.load_state_dict(state)
            except Exception as error:
                if not type(thing).__module__.startswith("torch."):
                    raise  # the script's own
                raise ChainError(f"{name} cannot go on with what was saved: {unreadable(error)}") from None
        with torch.no_grad():
            for name, saved in own["buffers"].items():
                module = self.modules[name]
                for key, buffer in own_buffers(module, module.state_dict()).items():
                    buffer.copy_(saved[key])


class Kept:
    """A dict of tensors and plain values that a script keeps from step to step, such as a batch fetched ahead."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        """The dict itself."""
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put what was saved into the script's own dict, tensors on the devices where it has them."""
        self.values.update({name: _placed(value, self.values.get(name)) for name, value in state.items()})


def _placed(saved: Any, given: Any) -> Any:
    if isinstance(saved, torch.Tensor):
        return saved.to(given.device) if isinstance(given, torch.Tensor) else saved
    if isinstance(saved, dict) and isinstance(given, Mapping):
        return {name: _placed(value, given.get(name)) for name, value in saved.items()}
    if type(saved) in (list, tuple) and isinstance(given, (list, tuple)) and len(given) == len(saved):
        return type(saved)(map(_placed, saved, given))
    return saved


def keeps_place(thing: Any) -> bool:
    """Whether it is a loader or a sampler, whose place `Run.steps` keeps."""
    return isinstance(thing, (torch.utils.data.DataLoader, torch.utils.data.Sampler)) or hasattr(thing, "set_epoch")


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch's DTensors, as FSDP2 makes them."""
    return hasattr(tensor, "placements")


def parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """What an optimizer trains."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """An optimizer's options by group, such as the learning rate, without its parameters."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def in_order(saved: dict[str, Any], there: list[list[str]], here: list[list[str]]) -> dict[str, Any]:
    """An optimizer's saved state, each group's parameters in the order that they have here. torch maps them by place.

    `there` and `here` are their names by group.
    """
    if there == here:
        return saved
    numbers = {
        name: number
        for names, group in zip(there, saved["param_groups"], strict=True)
        for name, number in zip(names, group["params"], strict=True)
    }
    ordered = [
        {**group, "params": [numbers[name] for name in names]}
        for names, group in zip(here, saved["param_groups"], strict=True)
    ]
    return {**saved, "param_groups": ordered}


def keep_dtypes(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Give an optimizer's state the dtypes that it was saved with: torch has cast it to its parameters' dtype."""
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters(optimizer), strict=True):
        state = optimizer.state[parameter] if number in saved["state"] else {}
        for key, value in state.items():
            before = saved["state"][number].get(key)
            if torch.is_tensor(value) and torch.is_tensor(before) and value.dtype != before.dtype:
                state[key] = before.to(value.device)


def own_buffers(module: nn.Module, saved: Collection[str]) -> dict[str, torch.Tensor]:
    """The module's own buffers that are saved and not sharded. `saved` are the names in its state."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return {name: each for name, each in buffers.items() if name in saved and not is_sharded(each)}


def copied(value: Any) -> Any:
    """The same value, its tensors copied to host memory: the training may change its own from now on."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()  # a number, such as a learning rate by np.cos: weights_only reads plain ones alone
    return copy.deepcopy(value)


def size_bytes(value: Any) -> int:
    """How large the tensors within a state are."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(size_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _refuse(name: str, module: nn.Module) -> None:
    if any(map(nn.parameter.is_lazy, [*module.parameters(), *module.buffers()])):
        raise ChainError(f"{name}: its lazy layers have no shape yet; pass a batch through it before resume")
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    if any(type(each).__name__ == "FullyShardedDataParallel" for each in inner.modules()):
        raise ChainError(f"{name}: FullyShardedDataParallel is not supported; use fully_shard (FSDP2) in its place")


def _check_readable(name: str, state: Any) -> None:
    """Refuse a state that `weights_only` would not read back. What its large tensors hold makes no difference."""
    content = io.BytesIO()
    try:
        torch.save(copied(_without_large(state)), content)
        content.seek(0)
        torch.load(content, weights_only=True)
    except Exception as error:
        raise ChainError(
            f"{name}: its state_dict holds more than tensors and plain values ({unreadable(error)})"
        ) from None


def _without_large(value: Any) -> Any:
    """The same value, its large tensors empty."""
    if isinstance(value, torch.Tensor):
        return value if size_bytes(value) <= LARGE_BYTES else torch.empty(0, dtype=value.dtype)
    if type(value) is dict:
        return {key: _without_large(each) for key, each in value.items()}
    return type(value)(map(_without_large, value)) if type(value) in (list, tuple) else value


def unreadable(error: Exception) -> str:
    """Why `weights_only` does not read something, in a line: torch names a strange class after many words."""
    text = f"{type(error).__name__}: {error}".strip()
    match = re.search(r"GLOBAL (\S+) was not an allowed|`?(\S+?)`? (?:was|is) not an allowed", text)
    return (match[1] or match[2]) if match else text.splitlines()[0]
