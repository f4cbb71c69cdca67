"""The types of what a strategy keeps: parameters, gradients and optimizer state are in the trial's precision."""

from __future__ import annotations

import torch

from relay.strategies.base import Strategy


def lowered(strategy: Strategy) -> list[str]:
    """What this rank keeps in fewer bits than the task says, in a few words each.

    Integers, such as a step's number, and single numbers, such as Adam's count, are in any type.
    """
    expected = strategy.task.dtype
    held: dict[str, list[tuple[str, torch.Tensor]]] = {"parameter": [], "gradient": [], "optimizer state": []}
    for name, owned in strategy.model.named_parameters():
        held["parameter"].append((name, owned))
        if owned.grad is not None:
            held["gradient"].append((name, owned.grad))
    names = {id(parameter): name for name, parameter in strategy.model.named_parameters()}
    for parameter, state in strategy.optimizer.state.items():
        place = names.get(id(parameter), "a parameter of the strategy's own")
        held["optimizer state"] += [(f"{kind} of {place}", t) for kind, t in state.items() if _counts(t)]
    lines = []
    for kind, tensors in held.items():
        wrong = [(name, tensor.dtype) for name, tensor in tensors if fewer_bits(tensor.dtype, expected)]
        if wrong:
            name, dtype = wrong[0]
            lines.append(f"{kind}: {name} is {_short(dtype)}, not {_short(expected)} ({len(wrong)} of {len(tensors)})")
    return lines


def _counts(value: object) -> bool:
    return torch.is_tensor(value) and value.dim() > 0


def fewer_bits(dtype: torch.dtype, expected: torch.dtype) -> bool:
    """Whether a type has fewer bits than expected, also one of integers: those are how states are quantised."""
    return dtype.itemsize < expected.itemsize


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
