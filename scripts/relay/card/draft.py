"""A card in the making: what a look at a task has found so far."""

from dataclasses import dataclass, field
from typing import Any

import torch

from relay.task.places import mistake
from relay.task.user import Task


@dataclass
class Draft:
    """`card` are fields of the card, `warnings` lines for the user; `optimizer` and `metrics` are a TaskSpec's.

    `kind` is the task's class, `device` where its model is computed. `mixes` says that the data's samples depend on
    each other; '' if not.
    """

    kind: type[Task]
    device: torch.device
    card: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    mixes: str = ""
    optimizer: str = ""
    metrics: tuple[str, ...] = ()

    def warn(self, name: str, problem: str) -> None:
        """Warn of something in what the class defines by this name."""
        self.warnings.append(str(mistake(self.kind, name, problem)))
