"""A task's optimiser, looked at: what it holds, and whether one of a part of the parameters is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from relay.card.model import Computable
from relay.card.seen import Seen, several
from relay.task.bound import BoundTask
from relay.task.places import calling, fail, mistake, of_machine, place

OPTIONS = ("momentum", "weight_decay")
SCHEDULED = (
    "each step is taken at the rate that `schedule` says; allowed: an optimiser whose rate stays, and in the class "
    'schedule = {"kind": "cosine", "warmup_epochs": 1}, say'
)
PLAIN = (bool, int, float, str, tuple, torch.Tensor)  # what options of a group are; others may be made at each call


def see(bound: BoundTask, model: nn.Module, seen: Seen) -> None:
    """Look at the optimiser that the task makes for a model. Raises UserError for one that cannot train it."""
    kind, parameters = type(bound.own), dict(model.named_parameters())
    with calling(kind, "optimizer"):
        made = bound.optimizer(parameters.values())
    held = {id(each) for group in made.param_groups for each in group["params"]}
    given = set(map(id, parameters.values()))
    left = [name for name, each in parameters.items() if each.requires_grad and id(each) not in held]
    if not held & given:
        raise mistake(
            kind,
            "optimizer",
            "optimizer() holds none of the parameters that it was given; allowed: an optimiser of `parameters`",
        )
    if strange := len(held - given):
        raise mistake(
            kind,
            "optimizer",
            f"optimizer() holds {strange} parameters that are none of the model's; allowed: those that it was given; a "
            "module of the model may have the loss's, and the model then returns its loss",
        )
    if left:
        seen.warnings.append(
            f"{place(kind, 'optimizer')}: optimizer() leaves out {several(left)}, which are never trained then"
        )
    if any("initial_lr" in group for group in made.param_groups):  # where torch's schedulers keep the first rate
        raise mistake(kind, "optimizer", f"optimizer() makes a scheduler; {SCHEDULED}")
    seen.optimizer = type(made).__name__.lower()
    seen.card["optimizer_options"] = {
        name: made.param_groups[0][name] for name in OPTIONS if name in made.param_groups[0]
    }
    _see_parts(bound, made, list(parameters.values()), seen)


def step(task: Computable) -> None:
    """Take a step with the gradients that the model has. The last look, because it changes the model.

    Raises UserError where it fails, as one does that computes several losses, and where it changes the learning rate.
    """
    bound, kind = task.bound, type(task.bound.own)
    made = bound.optimizer(task.model.parameters())
    rates = [group["lr"] for group in made.param_groups]
    try:
        made.step()
    except Exception as error:
        if of_machine(error):
            raise
        fail(kind, "optimizer", error, f"step() of {type(made).__name__}, called without a closure")
    if [group["lr"] for group in made.param_groups] != rates:
        raise mistake(kind, "optimizer", f"a step of optimizer()'s changes the learning rate; {SCHEDULED}")


def _see_parts(bound: BoundTask, whole: torch.optim.Optimizer, parameters: list[nn.Parameter], seen: Seen) -> None:
    """Put onto the card whether each parameter has the options that it has in the optimiser of all of them."""
    options = _options(whole)
    seen.card["grouped_by_place"] = not all(_alike(bound, part, options) for part in _parts(parameters))
    if seen.card["grouped_by_place"]:
        seen.warnings.append(
            f"{place(type(bound.own), 'optimizer')}: optimizer() groups parameters by their place in the list, and "
            "each stage of a pipeline has a list of its own: pipeline, pipeline_ddp and model_parallel are skipped; "
            "group parameters by what they are, such as their number of dimensions"
        )


def _parts(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Each half, and all but the first one: that moves every other parameter by one place."""
    half = len(parameters) // 2
    yield from (part for part in (parameters[:half], parameters[half:], parameters[1:]) if part)


def _alike(bound: BoundTask, part: Sequence[nn.Parameter], options: dict[int, dict[str, Any]]) -> bool:
    """Whether the optimiser of a part gives its parameters these options."""
    try:
        found = _options(bound.optimizer(part))
    except IndexError:  # a place that a shorter list does not have
        return False
    except Exception:  # such as a part with nothing to train: that says nothing of places
        return True
    return found == {id(each): options[id(each)] for each in part if id(each) in options}


def _options(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """The options of each parameter's group, as plain values."""
    return {
        id(parameter): {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params" and isinstance(value, PLAIN)
        }
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
