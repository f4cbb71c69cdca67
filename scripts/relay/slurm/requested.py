"""What jobs ask for beside what is declared: less where earlier runs needed less, more where they were killed.

The driver writes it down for later calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from relay.base import typed
from relay.base.files import write_json_over
from relay.spec.job import Job
from relay.spec.run import WRITTEN_AHEAD, Run, Specification

FILE = "requests.json"


@dataclass(frozen=True, kw_only=True)
class Sized:
    """What a setting's training jobs ask for by measurement, and why. `memory_mb` is None where none is asked for."""

    memory_mb: int | None
    minutes: int
    memory_why: str
    time_why: str


@dataclass(frozen=True)
class Requests:
    """`measured` is by settings' ids. `raised` has the memory in MB of jobs that were killed for less, by `name_of`."""

    measured: Mapping[str, Sized] = field(default_factory=dict)
    raised: Mapping[str, int] = field(default_factory=dict)

    def applied(self, specification: Specification, job: Job) -> Job:
        """A job as it is asked for. More memory is declared only in what the driver writes ahead for its jobs."""
        if isinstance(specification, Run) and (sized := self.measured.get(specification.setting_id)):
            job = replace(job, memory_mb=sized.memory_mb, minutes=sized.minutes)
        if specification.kind in WRITTEN_AHEAD:
            job = replace(job, memory_mb=self.memory_mb(specification, job))
        return job

    def memory_mb(self, specification: Specification, job: Job) -> int | None:
        """A node's memory that is asked for, in MB; None where none is."""
        return job.memory_mb and max(job.memory_mb, self.raised.get(name_of(specification), 0))

    def more(self, specification: Specification, memory_mb: int) -> Requests:
        """The same with so much memory for a job that was killed for less."""
        return replace(self, raised={**self.raised, name_of(specification): memory_mb})

    @classmethod
    def read(cls, results: Path) -> Requests:
        """What the driver has written down; nothing where it has not, or where the file is damaged."""
        return typed.read(cls, results / FILE) or cls()

    def write(self, results: Path) -> None:
        """Write it down for later calls. Raises OSError."""
        if self != typed.read(type(self), results / FILE):
            write_json_over(results / FILE, asdict(self))


def name_of(specification: Specification) -> str:
    """What shares a memory that was raised: all repeats of a setting; a gate, a reference or another job for itself."""
    return specification.setting_id if isinstance(specification, Run) else f"{specification.kind} {specification.id}"
