"""DeepSpeed's own Adams: one that updates parameters in main memory, and one whose update is a single kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from relay.task.bound import BoundTask
from relay.task.learning_rate import FACTOR

ADAMS = (torch.optim.Adam, torch.optim.AdamW)
TAKEN = ("params", "lr", "betas", "eps", "weight_decay", FACTOR)  # of a group, by DeepSpeed's Adams
Groups = list[dict[str, Any]]


def host_optimizer(task: BoundTask, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """DeepSpeedCPUAdam for Adam and AdamW. torch's own for other optimizers, and in float64, which it has not."""

    def make_adam(groups: Groups) -> torch.optim.Optimizer:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        adam: torch.optim.Optimizer = DeepSpeedCPUAdam(groups, adamw_mode=isinstance(optimizer, torch.optim.AdamW))
        return adam

    return _deepspeeds_or_own(task, optimizer, make_adam)


def fused_optimizer(task: BoundTask, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """FusedAdam for Adam and AdamW; torch's own in float64, in which FusedAdam does not compute."""

    def make_adam(groups: Groups) -> torch.optim.Optimizer:
        from deepspeed.ops.adam import FusedAdam

        adam: torch.optim.Optimizer = FusedAdam(groups, adam_w_mode=isinstance(optimizer, torch.optim.AdamW))
        return adam

    return _deepspeeds_or_own(task, optimizer, make_adam)


def _deepspeeds_or_own(
    task: BoundTask, optimizer: torch.optim.Optimizer, make_adam: Callable[[Groups], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    if type(optimizer) not in ADAMS or task.dtype == torch.float64:
        return optimizer
    return make_adam([{name: group[name] for name in group if name in TAKEN} for group in optimizer.param_groups])


def go_on_from(optimizer: Any, states: list[dict[str, Any]]) -> None:
    """Bring one of DeepSpeed's Adams to where its loaded states are: they count steps in whole numbers of Python.

    DeepSpeedCPUAdam multiplies the powers of its betas step by step, in C++ and in float32. Started anew, it would
    compute them in another way, with another rounding.
    """
    if not type(optimizer).__module__.startswith("deepspeed."):
        return
    for state in states:
        if "step" in state:
            state["step"] = int(state["step"])
    if not hasattr(optimizer, "ds_opt_adam"):
        return
    steps = max((state["step"] for state in states), default=0)
    group = optimizer.param_groups[0]
    values, nothing = (*group["betas"], group["eps"], 0.0, True), [torch.zeros(1) for _ in range(4)]
    for step in range(1, steps + 1):
        optimizer.ds_opt_adam.adam_update(optimizer.opt_id, step, group["lr"], *values, *nothing)
