"""What a search for the largest model has found of a setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relay.base import typed


@dataclass(frozen=True)
class LargestModel:
    """The deepest network with which a setting trains within its budget, the bytes that a rank may use.

    `depth` is in blocks. Where not even the shallowest network fits it is None, and `reason` says why. `state_bytes`
    are those of the formula for each parameter, on a rank. Other figures are None where the search did not get so far.
    """

    setting: str
    task: str
    depth: int | None
    limited_by: str
    reason: str | None
    state_bytes: float
    parameters: int | None = None
    predicted_depth: int | None = None
    predicted_parameters: int | None = None
    name: str = ""
    budget_bytes: int | None = None

    @property
    def limit_in_words(self) -> str:
        """What ended the search; '' for the memory, which is what it looks for."""
        return {"most": "the most to try", "minutes": "the most tried in the time allowed"}.get(self.limited_by, "")


def of_record(record: Mapping[str, Any], name: str) -> LargestModel:
    """A search's record, of the setting with this name. A record that lacks something raises TypeError or KeyError."""
    budgets = [each["budget_bytes"] for each in record.get("tried", ()) if each["budget_bytes"]]
    values = {**record, "name": name, "budget_bytes": max(budgets, default=None)}
    return typed.built(LargestModel, values, passing_over=True)
