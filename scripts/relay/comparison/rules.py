"""What decides which setting is recommended: the config's rules and limits, and what the site charges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relay.spec.price import Charging, Price, charging


@dataclass(frozen=True, kw_only=True)
class Rules(Charging):
    """What decides: the margin of a tie, the least efficiency of more devices, and what these count as.

    The answer is for a training of so many `epochs` (None: as the comparison's). With `deadline_hours` the cheapest is
    asked for that ends within them; with `budget`, in the price's currency or else in core-hours, no more is spent, and
    the fastest is asked for where there is no deadline.
    """

    margin: float
    least_efficiency: float
    epochs: float | None = None
    deadline_hours: float | None = None
    budget: float | None = None

    @property
    def efficiency(self) -> float:
        """What part of the cost's growth the speed has to grow by: by 1 the cheapest wins, by 0 the fastest."""
        return 1.0 if self.deadline_hours else 0.0 if self.budget else self.least_efficiency


def rules_of(margin: float, told: Mapping[str, Any], compared: Iterable[Mapping[str, float]] = ()) -> Rules:
    """The rules that the plan has written down; defaults where an older plan has none. `compared`: CPUs and GPUs."""
    found = charging(Price.model_validate(told.get("price") or {}), told.get("cores_per_gpu"), compared)
    return Rules(
        margin=margin,
        least_efficiency=told.get("least_efficiency", 0.7),
        cores_per_gpu=found.cores_per_gpu,
        price=found.price,
        **{name: told.get(name) for name in ("epochs", "deadline_hours", "budget")},
    )
