"""What there is to do: runs, gates, references, preflights, their chains and jobs; `planning` makes it of the config.

It imports no torch, and takes milliseconds: it is made again inside every job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from relay.base.errors import Unavailable, UserError
from relay.environments import login_node
from relay.planning import segments, shapes
from relay.planning.config import Config, Segment
from relay.slurm import commands
from relay.spec.job import Job
from relay.spec.run import Run
from relay.spec.site import Site

RESULTS = Path("results")
SPEEDS = RESULTS / "speeds.json"
REFUSED = "Slurm refuses"
PREFLIGHT_MINUTES = 10


@dataclass(frozen=True)
class Setting:
    """A setting that can run: `run` stands for its repeats, `comparison` is its place in the config."""

    run: Run
    comparison: int
    segment: Segment | None
    repeats: int


@dataclass
class Plan:
    """What there is to do, in the order of submission.

    `runs` are interleaved: all settings of repeat 0 in random order, then all of repeat 1, so that a slow
    hour hits all alike. `gates`, `references` and `preflights` are runs by id; `gate_of` and `reference_of` lead from
    a run's id to its gate's, and from that to its reference's; `preflight_of` leads from a run's or gate's id to the
    preflight of its shape and stack. `skipped` are rows with the columns known and a `reason`; `strategies` are the
    names in the config, those skipped included. `site` is None where the runs go to this machine.
    """

    config: Config
    root: Path
    site: Site | None
    settings: list[Setting]
    runs: list[Run]
    gates: dict[str, Run]
    references: dict[str, Run]
    preflights: dict[str, Run]
    gate_of: dict[str, str]
    reference_of: dict[str, str]
    preflight_of: dict[str, str]
    skipped: list[dict[str, Any]]
    strategies: list[str]
    warnings: list[str]
    speeds: Path = SPEEDS
    _ends: dict[str, list[int]] = field(default_factory=dict, repr=False)
    _environments: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)

    def job(self, specification: Run) -> Job | None:
        """What a job of the run, gate, reference or preflight asks of Slurm; None on this machine."""
        if self.site is None:
            return None
        minutes = PREFLIGHT_MINUTES if specification.id in self.preflights else self.config.runtime_minutes
        found = self._environment(specification.stack, specification.device)
        return shapes.job(specification, self.site, self.config, minutes, found)

    def prepare(self) -> None:
        """Before anything runs: ask whether Slurm would take the jobs, and write down all that they have to know.

        The specifications are no outputs of a rule: Snakemake would leave undone, in silence, what depends on a file
        that is made anew and is no reason to train again. Raises UserError where Slurm refuses a job.
        """
        if refused := [line for line in self.expected_starts() if line.startswith(REFUSED)]:
            raise UserError(refused[0])
        kinds = {"runs": ("run", self.runs), "equivalence/gates": ("gate", self.gates.values())}
        kinds |= {"equivalence/references": ("reference", self.references.values())}
        for folder, (name, specifications) in kinds.items():
            for specification in specifications:
                specification.write(RESULTS / folder / specification.id / f"{name}.json", self.job(specification))

    def expected_starts(self) -> Iterator[str]:
        """When the queue would start a job of each shape if it were submitted now; why it would refuse it, if so."""
        if self.site is None or not commands.available():
            return
        now = datetime.now().astimezone()
        jobs = {self.preflight_of[run.id]: self.job(run) for run in self.runs}
        for name, job in jobs.items():
            assert job is not None
            look = self.preflights[name]
            shape = f"{look.nodes} × {look.devices_per_node} {look.device}, {job.tasks} × {job.cpus_per_task} CPUs"
            try:
                start = commands.expected_start(shapes.sbatch_flags(job, self.site))
            except Unavailable as error:
                yield f"expected start of a job of {shape}: not known: {error}"
            except UserError as error:
                yield f"{REFUSED}, for {self.site.file}, a job of {shape}: {error}"
            else:
                minutes = max(0.0, (start - now).total_seconds() / 60) if start else 0.0
                yield f"expected start of a job of {shape}: in {minutes:.0f} minutes, says sbatch --test-only"

    def _environment(self, stack: str, device: str) -> dict[str, Any]:
        """What the nodes are told of a stack's environment; asked for every job, and the same for all."""
        if (stack, device) not in self._environments:
            self._environments[stack, device] = login_node.asked(self.site, stack, self.root, device=device)
        return self._environments[stack, device]

    @property
    def unready(self) -> list[str]:
        """What must be filled in before anything is submitted, a line for each; the plan stands without it."""
        if self.site is None:
            return []
        asking = [*(setting.run for setting in self.settings), *self.gates.values(), *self.references.values()]
        found = (shapes.partition_for(run, self.site, self.config)[0] for run in asking)
        used = [partition for partition in found if partition]
        return [*self.site.missing(self.config.runtime_minutes, used), *login_node.unready(self.site)]

    @cached_property
    def _by_setting(self) -> dict[str, Setting]:
        return {setting.run.setting: setting for setting in self.settings}

    @cached_property
    def _measured(self) -> dict[str, float]:
        return segments.read_speeds(self.speeds)

    def segments(self, run: Run) -> list[int]:
        """The steps at which the run's jobs end, ascending. Raises UserError where a speed is missing."""
        if run.setting not in self._ends:
            segment = self._by_setting[run.setting].segment
            seconds = self._measured.get(run.setting) if segment and segment.minutes else None
            length = segments.steps_in_a_job(
                segment,
                steps_per_epoch=run.steps_per_epoch,
                total_steps=run.total_steps,
                seconds_per_step=seconds,
            )
            self._ends[run.setting] = segments.ends(run.total_steps, length)
        return self._ends[run.setting]

    def previous_end(self, run: Run, end: int) -> int:
        """Where the job before the one that ends at `end` ended, 0 for the first. ValueError if none does."""
        ends = self.segments(run)
        place = ends.index(end)
        return ends[place - 1] if place else 0

    @property
    def unmeasured(self) -> list[Run]:
        """The first run of each setting whose segment is in minutes and whose speed is not measured yet."""
        waiting = [s.run for s in self.settings if s.segment and s.segment.minutes]
        missing = {run.setting for run in waiting} - set(self._measured)
        return [run for run in self.runs if run.setting in missing and run.repeat == 0]

    def check_measured(self) -> None:
        """Raises UserError where jobs are given in minutes and what a step takes is not known yet."""
        for run in self.runs:
            self.segments(run)

    def runs_of(self, strategy: str) -> list[Run]:
        """The strategy's runs, in the order of submission; none where it is skipped."""
        return [run for run in self.runs if run.strategy == strategy]

    @property
    def frame(self) -> pd.DataFrame:
        """The table of runs, a row for each in the order of submission, with the id of its gate."""
        return pd.DataFrame([{**_columns(run), "gate": self.gate_of[run.id]} for run in self.runs])

    def to_json(self) -> dict[str, Any]:
        """What `results/plan.json` holds: for the comparison, which knows nothing of the config."""
        runs = [
            {"id": r.id, "setting": r.setting, "gate": self.gate_of[r.id], "segments": self.segments(r)}
            | {"reference": self.reference_of[self.gate_of[r.id]]}
            | {"preflight": self.preflight_of[r.id] if self.site else None}
            for r in self.runs
        ]
        return {"runs": runs, "skipped": self.skipped, "margin": self.config.margin}


def _columns(run: Run) -> dict[str, Any]:
    """A run as a row of the table: its task by name, and no paths."""
    left_out = ("task", "dataset", "strategy_file", "divides", "lossy")
    columns = {name: value for name, value in vars(run).items() if name not in left_out}
    return {
        **columns,
        "task": run.task.name,
        "world_size": run.world_size,
        "learning_rate": run.task.learning_rate,
    }
