"""DeepSpeed's own Adams: one that updates parameters in main memory, and one whose update is a single kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from relay.task.task import Task

ADAMS = ("adam", "adamw")
Parameters = list[nn.Parameter] | list[dict[str, Any]]


def host_optimizer(task: Task, parameters: Parameters) -> torch.optim.Optimizer:
    """DeepSpeedCPUAdam for Adam and AdamW. torch's own for other optimizers, and in float64, which it has not."""

    def deepspeeds(**values: Any) -> torch.optim.Optimizer:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        made: torch.optim.Optimizer = DeepSpeedCPUAdam(parameters, adamw_mode=task.spec.optimizer == "adamw", **values)
        return made

    return _own_or(task, parameters, deepspeeds)


def fused_optimizer(task: Task, parameters: Parameters) -> torch.optim.Optimizer:
    """FusedAdam for Adam and AdamW; torch's own in float64, in which FusedAdam does not compute."""

    def deepspeeds(**values: Any) -> torch.optim.Optimizer:
        from deepspeed.ops.adam import FusedAdam

        made: torch.optim.Optimizer = FusedAdam(parameters, adam_w_mode=task.spec.optimizer == "adamw", **values)
        return made

    return _own_or(task, parameters, deepspeeds)


def _own_or(task: Task, parameters: Parameters, deepspeeds: Any) -> torch.optim.Optimizer:
    asked = task.optimizer(parameters)
    if task.spec.optimizer not in ADAMS or task.dtype == torch.float64:
        return asked
    made: torch.optim.Optimizer = deepspeeds(
        **{name: asked.defaults[name] for name in ("lr", "betas", "eps", "weight_decay")}
    )
    return made


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
