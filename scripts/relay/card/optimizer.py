"""A task's optimiser, looked at: what it holds, and whether a part of the parameters is updated as the whole is."""

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from relay.card.draft import Draft
from relay.card.model import Computable
from relay.process.generators import drawn_from
from relay.spec.labels import several
from relay.strategies._checkpoints import added
from relay.task import batches
from relay.task.bound import BoundTask
from relay.task.places import calling, fail, mistake, of_machine, place
from relay.task.user import Task

OPTIONS = ("momentum", "weight_decay")
STAYING = ("lr", *OPTIONS)
SCHEDULED = (
    "each step is taken at the rate that the task's scheduler or schedule says; allowed: an optimiser whose rate "
    "stays, and a method scheduler(self, optimizer, steps) that returns one of torch's schedulers"
)
STEPS = 100  # with which a scheduler is tried
# Why strategies are skipped, by what a step of the optimiser reads beside the number that it changes.
READS = {
    "tensor": "reads whole tensors, as LAMB and Muon do: DeepSpeed's strategies are skipped, which update flat pieces",
    "model": "reads all parameters at once: pipelines, model_parallel and DeepSpeed's strategies are skipped, because "
    "each process has a part; to clip under every strategy, write clip_grad_norm = 1.0 in the class instead",
}
# Why the training cannot be proven, whichever strategy trains it.
DEPENDENT = {
    "other": "a step of optimizer() gives another result when it is repeated ({}): each process draws its own numbers",
    "forgets": "a step of optimizer() gives another result after a checkpoint ({}): it keeps something, such as a "
    "count of steps, in itself or among its defaults, which no checkpoint holds; allowed: tensors in "
    "self.state[parameter], and numbers that it adds to a group",
}
SMALL = 8  # numbers in a dimension of what a step is tried with
PLAIN = (bool, int, float, str, tuple, torch.Tensor)  # what options of a group are; others may be made at each call


def see(bound: BoundTask, model: nn.Module, draft: Draft) -> None:
    """Look at the optimiser that the task makes for a model. Raises UserError for one that cannot train it."""
    kind, parameters = type(bound.own), dict(model.named_parameters())
    wrong = partial(mistake, kind, "optimizer")
    if not any(each.requires_grad for each in parameters.values()):
        raise mistake(kind, "model", "the model has no parameters to train; allowed: at least one")
    with calling(kind, "optimizer"):
        optimizer = bound.optimizer(parameters.values())
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    given = set(map(id, parameters.values()))
    left = [name for name, each in parameters.items() if each.requires_grad and id(each) not in held]
    if not held & given:
        raise wrong(
            "optimizer() holds none of the parameters that it was given; allowed: an optimiser of `parameters`; a "
            "model that model() has kept may have others: tell them apart by what they are, such as each.ndim",
        )
    if strange := len(held - given):
        raise wrong(
            f"optimizer() holds {strange} parameters that are none of the model's; allowed: those that it was given; a "
            "module of the model may have the loss's, and the model then returns its loss",
        )
    if left:
        draft.warn("optimizer", f"optimizer() leaves out {several(left)}, which are never trained then")
    if any("initial_lr" in group for group in optimizer.param_groups):  # where torch's schedulers keep the first rate
        raise wrong(f"optimizer() makes a scheduler; {SCHEDULED}")
    _see_scheduler(bound, draft)
    draft.optimizer = type(optimizer).__name__.lower()
    draft.card["optimizer_options"] = {
        name: optimizer.param_groups[0][name] for name in OPTIONS if name in optimizer.param_groups[0]
    }
    _see_parts(bound, optimizer, list(parameters.values()), draft)
    scope = _scope(bound, list(parameters.values()))
    if scope in DEPENDENT:
        draft.card["dependent"] = DEPENDENT[scope].format(place(kind, "optimizer"))
    else:
        draft.card["optimizer_scope"] = scope
    if scope in READS:
        draft.warn("optimizer", f"a step of optimizer()'s {READS[scope]}")


def step(task: Computable) -> None:
    """Take a step with the gradients that the model has. The last look, because it changes the model.

    Raises UserError where it fails, as one does that computes several losses, and where it changes the learning rate.
    """
    bound, kind = task.bound, type(task.bound.own)
    batches.model_of_type(task.again, bound.dtype)  # the user's object may keep it; a look has made it float64
    optimizer = bound.optimizer(task.model.parameters())
    before = [{name: group.get(name) for name in STAYING} for group in optimizer.param_groups]
    quiet = warnings.catch_warnings(action="ignore")  # they were told
    with quiet, torch.no_grad(), drawn_from(0), calling(kind, "loss"):  # which may know the optimiser
        bound.loss(bound.outputs(task.model, task.batch), task.batch)
    for what, call in (
        ("step() of {}, called without a closure (AdamW, for one, needs none)", optimizer.step),
        ("state_dict() of {}, which checkpoints save and load", partial(_reload, optimizer)),
    ):
        try:
            call()
        except Exception as error:
            if of_machine(error):
                raise
            fail(kind, "optimizer", error, what.format(type(optimizer).__name__))
    for group, had in zip(optimizer.param_groups, before, strict=True):
        if changed := [name for name in STAYING if group.get(name) != had[name]]:
            what = {"lr": f"the learning rate; {SCHEDULED}"}.get(changed[0], f"{changed[0]}; allowed: one that stays")
            raise mistake(kind, "optimizer", f"a training step changes {what}")


def _reload(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def _see_scheduler(bound: BoundTask, draft: Draft) -> None:
    """Look at the task's own scheduler in a run of some steps. Raises UserError for one that cannot be followed."""
    kind = type(bound.own)
    draft.card["scheduler"] = kind.scheduler is not Task.scheduler
    if not draft.card["scheduler"]:
        return
    tried = replace(bound, total_steps=STEPS)
    with calling(kind, "scheduler", f"a run of {STEPS} steps"):
        (group,) = tried.learning_rate.scheduler.optimizer.param_groups
        seen_at = [(tried.learning_rate(step), group["momentum"]) for step in range(STEPS + 1)]
    if len({momentum for _, momentum in seen_at}) > 1:
        problem = "scheduler() changes the momentum; allowed: the learning rate alone, as with cycle_momentum=False"
        raise mistake(kind, "scheduler", problem)
    if odd := [rate for rate, _ in seen_at if not 0 <= rate < math.inf]:
        raise mistake(kind, "scheduler", f"scheduler(): the learning rate becomes {odd[0]:g}; allowed: at least 0")


def _see_parts(bound: BoundTask, whole: torch.optim.Optimizer, parameters: list[nn.Parameter], draft: Draft) -> None:
    """Put onto the card whether each parameter has the options that it has in the optimiser of all of them."""
    options, half = _options(whole), len(parameters) // 2
    # Each half, and all but the first one: that moves every other parameter by one place.
    parts = filter(None, (parameters[:half], parameters[half:], parameters[1:]))
    draft.card["grouped_by_place"] = not all(_alike(bound, part, options) for part in parts)
    if draft.card["grouped_by_place"]:
        draft.warn(
            "optimizer",
            "optimizer() groups parameters by their place in the list, and each stage of a pipeline has a list of its "
            "own: pipeline, pipeline_ddp and model_parallel are skipped; group parameters by what they are, such as "
            "their number of dimensions",
        )


def _alike(bound: BoundTask, part: Sequence[nn.Parameter], options: dict[int, dict[str, Any]]) -> bool:
    """Whether the optimiser of a part gives its parameters these options."""
    try:
        given_options = _options(bound.optimizer(part))
    except IndexError:  # a place that a shorter list does not have
        return False
    except Exception:  # such as a part with nothing to train: that says nothing of places
        return True
    return given_options == {id(each): options[id(each)] for each in part if id(each) in options}


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


def _scope(bound: BoundTask, parameters: list[nn.Parameter]) -> str:
    """What a step reads to change a number: "element", "tensor" or "model", as `Card.optimizer_scope` has it.

    Seen of small tensors that take the parameters' places, with gradients that any clipping would clip. "element", too,
    where that cannot be tried: then the gates decide. "other": the same step taken again is another one. "forgets": so
    is the step after a checkpoint.
    """
    trained, loaded = [each for each in parameters if each.requires_grad], list[torch.Tensor]()
    half = len(trained) // 2
    try:
        whole, again = (_stepped(bound, trained) for _ in range(2))
        parts = [each for part in (slice(half), slice(half, None)) for each in _stepped(bound, trained, part)]
    except Exception:  # such as one that has made the state of its parameters already
        return "element"
    with suppress(Exception):  # such as one with a `load_state_dict` of its own
        loaded = _stepped(bound, trained, loaded=True)
    if not _same(whole, again):
        return "other"
    if loaded and not _same(whole, loaded):
        return "forgets"
    if not _same(whole, parts):
        return "model"
    try:
        return "element" if _same(whole, _stepped(bound, trained, cut=True)) else "tensor"
    except Exception:  # such as Muon, of what is no matrix
        return "tensor"


def _stepped(
    bound: BoundTask,
    parameters: list[nn.Parameter],
    part: slice = slice(None),
    *,
    cut: bool = False,
    loaded: bool = False,
) -> list[torch.Tensor]:
    """How two steps change the stand-ins of a part of the parameters, flat; each `cut` into two flat pieces.

    With `loaded`, another optimiser takes the second step, which has loaded what checkpoints hold of the first one.
    """
    drawn = torch.Generator().manual_seed(0)
    sizes = [[min(size, SMALL) for size in each.shape] for each in parameters]
    values, *gradients = ([torch.randn(s, generator=drawn, dtype=torch.float64) for s in sizes] for _ in range(3))
    pieces = (lambda tensor: tensor.flatten().chunk(2)) if cut else (lambda tensor: (tensor,))
    held = {
        id(parameter): [nn.Parameter(piece.clone()) for piece in pieces(value)]
        for parameter, value in [*zip(parameters, values, strict=True)][part]
    }

    def made() -> torch.optim.Optimizer:
        optimizer = bound.optimizer(parameters)
        for group in optimizer.param_groups:
            group["params"] = [piece for each in group["params"] for piece in held.get(id(each), ())]
        optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
        return optimizer

    optimizer = made()
    for number, given in enumerate(gradients):
        if number and loaded:
            state, counts = deepcopy(optimizer.state_dict()["state"]), added(optimizer)
            optimizer = made()
            optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
            for group, its in zip(optimizer.param_groups, counts, strict=True):
                group |= its
        for parameter, gradient in [*zip(parameters, given, strict=True)][part]:
            for piece, its in zip(held[id(parameter)], pieces(1e4 * gradient), strict=True):
                piece.grad = its.clone()
        optimizer.step()
    after = [torch.cat([piece.detach().flatten() for piece in held[id(each)]]) for each in parameters[part]]
    return [now - value.flatten() for now, value in zip(after, values[part], strict=True)]


def _same(changes: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether the parameters are changed alike, but for rounding."""
    most = max((each.abs().max().item() for each in changes if each.numel()), default=0.0)
    return all(torch.allclose(a, b, rtol=0, atol=1e-6 * most) for a, b in zip(changes, others, strict=True))
