"""What the check of one run found, and what status that gives the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OF_EVALUATIONS = "test "  # what their figures' names begin with


@dataclass
class Findings:
    """What the check of one run found. `unchecked` says why something could not be checked.

    `generation` is the start of the run that was checked.
    """

    run: str
    generation: str | None = None
    spots: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    seconds: float = 0.0
    saving_seconds: float = 0.0
    broken: bool = False  # the check itself has failed: what it had found by then is not all

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json."""
        names = [part["name"] for spot in self.spots for part in spot["parts"]]
        whole = not self.broken and any(not name.startswith(OF_EVALUATIONS) for name in names)
        status = "failed" if self.problems else "passed" if whole else "not checked"
        return {**vars(self), "status": status}
