"""What the equivalence gate finds: figures with their limits, and problems in a line each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

TrialName = Literal["algorithm", "scaled", "own precision", "smooth twin", "gradient", "lossy", "communication"]
Compared = Literal["losses", "parameters", "outputs"]


@dataclass(frozen=True)
class Part:
    """One comparison of one trial with the reference. It passes where its figure is at most the limit."""

    trial: TrialName
    compared: Compared
    what: str
    figure: float
    limit: float

    @property
    def passed(self) -> bool:
        """No number never passes."""
        return self.figure <= self.limit

    @property
    def name(self) -> str:
        """What people read."""
        return "evaluation" if self.compared == "outputs" else f"{self.trial}: {self.compared}"

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json."""
        return {**asdict(self), "name": self.name, "passed": self.passed}


@dataclass
class Verdict:
    """Gathers parts and problems; equivalent where every part passed and there is no problem."""

    gate: str
    parts: list[Part] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Take a comparison in; one that fails is a problem."""
        self.parts.append(part)
        if not part.passed:
            self.problems.append(f"{part.name}: {part.what}: {part.figure:.1e}, allowed is {part.limit:.0e}")

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json."""
        losses = [part.figure for part in self.parts if (part.trial, part.compared) == ("algorithm", "losses")]
        return {
            "gate": self.gate,
            "equivalent": not self.problems,
            "max_loss_difference": losses[0] if losses else None,
            "parts": [part.as_dict() for part in self.parts],
            "problems": self.problems,
            "notes": self.notes,
            **self.figures,
        }
