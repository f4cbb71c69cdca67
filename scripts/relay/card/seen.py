"""What a look has found so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Seen:
    """`card` are fields of the card, `warnings` lines for the user; `optimizer` and `metrics` are a TaskSpec's.

    `device` is where the model is computed. `mixes` says that the data's samples depend on each other; '' if not.
    """

    device: torch.device
    card: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    mixes: str = ""
    optimizer: str = ""
    metrics: tuple[str, ...] = ()
