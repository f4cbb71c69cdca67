"""Snakemake's greedy scheduler, in the planned order: `scheduler: torch-relay`, which the profiles name.

Schedulers choose by priority which jobs fit. What they chose has the order of a set, so that 100 jobs with room for all
went in any order (https://github.com/snakemake/snakemake/issues/615). Here priorities are the planned order of the
repeats, which is a rule of measurement.
"""

from collections.abc import Sequence
from typing import Any

from snakemake.scheduling import greedy
from snakemake.scheduling.greedy import SchedulerSettings  # Snakemake asks for it

__all__ = ["Scheduler", "SchedulerSettings"]


class Scheduler(greedy.Scheduler):
    """Hands on what was chosen by priority, the highest first."""

    def select_jobs(self, *given: Any, **named: Any) -> Sequence[Any]:
        return sorted(super().select_jobs(*given, **named), key=lambda job: -job.priority)
