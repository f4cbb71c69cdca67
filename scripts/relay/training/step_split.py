"""What a step's time goes to, as it was seen in a few steps at the end of a run's first job. Needs no torch.

`step_split.json` beside the checkpoints. The steps that were observed are not timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relay.base import typed
from relay.base.files import write_json_over

FILE = "step_split.json"
# The parts of a step. It waits for data; computes; waits for other processes, or for what is sent, without computing;
# updates the parameters. On CPUs it may be ready, and no CPU is free (`no_cpu`). A GPU may have nothing to do, because
# the CPU has not given it work yet (`idle`).
PARTS = ("data", "compute", "communication", "optimizer", "no_cpu", "idle")
COLUMNS = {part: f"step_{part}_fraction" for part in PARTS}


@dataclass(frozen=True)
class StepSplit:
    """The steps after `first`, up to `last`, of an attempt, and for each rank the seconds of each part in one step.

    `method` is how they were told apart.
    """

    attempt: int
    first: int
    last: int
    method: str
    ranks: Sequence[Mapping[str, float]]

    def write(self, work: Path) -> None:
        """Keep it. Raises OSError."""
        write_json_over(work / FILE, asdict(self))

    @classmethod
    def read(cls, work: Path) -> StepSplit | None:
        """What was kept; None where there is nothing, or something damaged."""
        return typed.read(cls, work / FILE)

    def within(self, attempt: int, block: Sequence[float]) -> bool:
        """Whether a block of steps, [first, last, …], is one of those that were observed."""
        return attempt == self.attempt and self.first <= block[0] and block[1] <= self.last

    @property
    def seconds(self) -> float:
        """A step's seconds, the mean over the ranks."""
        return sum(sum(rank.values()) for rank in self.ranks) / len(self.ranks)

    def fractions(self) -> dict[str, float]:
        """The parts of a step's time, the mean over the ranks; they add up to 1."""
        whole = self.seconds
        return {part: sum(rank.get(part, 0.0) for rank in self.ranks) / len(self.ranks) / whole for part in PARTS}


def figures(split: StepSplit | None, step_seconds: float | None) -> dict[str, Any]:
    """What a summary has of it. `step_seconds` is the median of the steps that were timed."""
    if split is None or not split.ranks or split.seconds <= 0:
        return {}
    parts: dict[str, Any] = {COLUMNS[part]: round(value, 4) for part, value in split.fractions().items()}
    return parts | ({"observed_step_ratio": round(split.seconds / step_seconds, 4)} if step_seconds else {})
