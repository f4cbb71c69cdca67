"""What earlier runs in a folder of results have measured of a setting, or of one that differs in its length only."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from relay.base import typed
from relay.base.errors import UserError
from relay.base.grouped import grouped
from relay.run_folder import job_times
from relay.run_folder.job_times import JobTimes
from relay.run_folder.places import Places
from relay.run_folder.summary import FILE, Summary
from relay.spec.identity import fingerprint
from relay.spec.job import Job
from relay.spec.run import Run, Setting


@dataclass(frozen=True)
class Trained:
    """A run that has trained: the times of its jobs, what they asked Slurm for, and its summary once it is done."""

    run: Run
    times: tuple[JobTimes, ...]
    job: Job | None
    summary: Summary | None


class Earlier:
    """The runs of these strategies that have trained in a folder of results. It is read when it is first asked for."""

    def __init__(self, results: Path, strategies: Collection[str]) -> None:
        self.results, self.strategies = results, tuple(strategies)

    def of(self, setting_id: str, setting: Setting) -> list[Trained]:
        """The runs of a setting; where there are none, those of settings that differ from it in their length only."""
        alike = self._by_kind.get(_kind(setting), [])
        return [each for each in alike if each.run.setting_id == setting_id] or alike

    @cached_property
    def _by_kind(self) -> dict[str, list[Trained]]:
        return grouped(self._trained(), lambda each: _kind(each.run))

    def _trained(self) -> Iterator[Trained]:
        for path in sorted((self.results / "checkpoints").glob("*/chain.json")):
            places = Places(self.results, path.parent.name)
            if not places.run_id.startswith(tuple(f"{name}-" for name in self.strategies)):
                continue
            specification = places.run / "run.json"
            try:
                run, job = Run.read(specification), Job.read(specification)
            except (OSError, UserError, ValueError, TypeError, KeyError):
                continue  # of another version, or damaged: it then counts as not measured
            if times := job_times.of_run(places.work):
                summary = typed.read(Summary, places.run / FILE)
                yield Trained(run, tuple(times), job, summary if summary and summary.status == "done" else None)


def _kind(setting: Setting) -> str:
    """What two settings have in common that take the same time and memory for a step."""
    script = setting.strategy.script
    strategy: list[Any] = [setting.strategy.name, setting.strategy.stack, dict(setting.strategy.options)]
    strategy += [script.identity()] if script else []
    optimizer = (setting.task.optimizer, dict(setting.task.optimizer_options))
    groups = (setting.shape, setting.place, setting.computation, setting.feeding, setting.batch)
    return fingerprint([setting.task.name, *optimizer, setting.dataset.directory_name, *strategy, *groups])
