"""Updating parameters in main memory, with DeepSpeed's own Adam for CPUs where it can."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from relay.task.task import Task

ADAMS = ("adam", "adamw")


def host_optimizer(task: Task, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """DeepSpeedCPUAdam for Adam and AdamW. torch's own for other optimizers, and in float64, which it has not."""
    asked = task.optimizer(parameters)
    if task.spec.optimizer not in ADAMS or task.dtype == torch.float64:
        return asked
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    values = {name: asked.defaults[name] for name in ("lr", "betas", "eps", "weight_decay")}
    made: torch.optim.Optimizer = DeepSpeedCPUAdam(parameters, **values, adamw_mode=task.spec.optimizer == "adamw")
    return made


def go_on_from(optimizer: Any, states: list[dict[str, Any]]) -> None:
    """Bring DeepSpeedCPUAdam to where its loaded states are.

    It multiplies the powers of its betas step by step, in C++ and in float32. Started anew, it would compute them in
    another way, with another rounding.
    """
    if not hasattr(optimizer, "ds_opt_adam"):
        return
    for state in states:
        state["step"] = int(state.get("step", 0))
    steps = max((state["step"] for state in states), default=0)
    group = optimizer.param_groups[0]
    values, nothing = (*group["betas"], group["eps"], 0.0, True), [torch.zeros(1) for _ in range(4)]
    for step in range(1, steps + 1):
        optimizer.ds_opt_adam.adam_update(optimizer.opt_id, step, group["lr"], *values, *nothing)
