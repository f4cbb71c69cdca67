"""How the runs of a plan stand, looked at again and again: what is over is not read again, Slurm is asked seldom."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from relay.base.errors import UserError
from relay.slurm import commands
from relay.slurm.commands import QueuedJob
from relay.spec.labels import counted
from relay.spec.run import Run
from relay.status.runs import Standing, queued, standing

QUEUE_SECONDS = 60.0  # between two looks at Slurm's queue, which other users look at, too


@dataclass
class Watch:
    """The runs of a plan, and how they stand.

    `names` are asked for once, when they are needed first. `ends` gives the steps at which a run's jobs end, None where
    they are not known. `results` is the runs' folder. `on_slurm`: whether Slurm's queue tells what runs and waits; it
    is asked `tries` times.
    """

    runs: Sequence[Run]
    names: Callable[[], Mapping[str, str]]
    ends: Callable[[Run], Sequence[int] | None]
    results: Path
    on_slurm: bool
    tries: int = 1
    news: str = ""
    _queue: dict[str, QueuedJob] | None = None
    _asked_at: float | None = None
    _over: dict[str, Standing] = field(default_factory=dict)

    def look(self) -> list[Standing]:
        """How the runs stand now. `news` is then a line on Slurm's queue, '' on a machine without Slurm."""
        self._look_at_queue()
        return [self._standing(run) for run in self.runs]

    def _standing(self, run: Run) -> Standing:
        if run.id in self._over:
            return self._over[run.id]
        current = standing(run, self._names[run.id], self.ends(run), self.results, self._queue)
        if current.state == "done":
            self._over[run.id] = current
        return current

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return self.names()

    def _look_at_queue(self) -> None:
        now = time.monotonic()
        if not self.on_slurm or (self._asked_at is not None and now - self._asked_at < QUEUE_SECONDS):
            return
        self._asked_at = now
        try:
            jobs = commands.jobs_of(Path.cwd(), tries=self.tries)
            self._queue, self.news = queued(jobs), f"queue: {counted(len(jobs), 'job')} of this folder"
        except UserError as error:
            self._queue, self.news = self._queue or {}, f"queue: unknown: {error}"
