"""What the equivalence gate finds: figures with their limits, and problems in a line each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Verdict:
    """Gathers parts and problems; equivalent where every part passed and there is no problem."""

    gate: str
    parts: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def compare(self, name: str, what: str, figure: float, limit: float) -> None:
        """A part passes where its figure is at most the limit; no number never passes."""
        passed = figure <= limit
        self.parts.append({"name": name, "what": what, "figure": figure, "limit": limit, "passed": passed})
        if not passed:
            self.problems.append(f"{name}: {what}: {figure:.1e}, allowed is {limit:.0e}")

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json."""
        losses = [part["figure"] for part in self.parts if part["name"] == "algorithm: losses"]
        return {
            "gate": self.gate,
            "equivalent": not self.problems,
            "max_loss_difference": losses[0] if losses else None,
            "parts": self.parts,
            "problems": self.problems,
            "notes": self.notes,
            **self.figures,
        }
