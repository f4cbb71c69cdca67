"""Which steps of a run are computed again in one plain process, once the run has ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SpotChecks:
    """How many spots of a run are checked, and how many `steps` each of them has.

    `random_steps` lie anywhere. `hops` lie across a planned end of a job: it saves, and the next one loads. `end` are
    the run's last steps. They do not belong to a run's identity, because they change nothing that it computes.
    """

    random_steps: int = 1
    hops: int = 1
    end: bool = True
    steps: int = 2

    @property
    def any(self) -> bool:
        """Whether there is anything to check."""
        return self.random_steps > 0 or self.hops > 0 or self.end
