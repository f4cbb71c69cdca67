"""Torch Relay: measures which way of training to ask Slurm for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Task"]

if TYPE_CHECKING:
    from relay.task.user import Task


def __getattr__(name: str) -> Any:
    """`relay.Task`, for users' files. Found when it is asked for, because the planner needs nothing of it."""
    if name == "Task":
        from relay.task.user import Task

        return Task
    raise AttributeError(f"module 'relay' has no attribute '{name}'")
