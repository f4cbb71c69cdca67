"""What there is to do: runs, gates, references, preflights, their chains and jobs; `planner` makes it of the config.

It imports no torch, and takes milliseconds: it is made again inside every job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from relay.base.errors import Unavailable, UserError
from relay.environments import login_node
from relay.planning import segments, shapes
from relay.planning.config import Config, Segment
from relay.planning.here import unfit_folders
from relay.run_folder.layout import check_layout
from relay.slurm import commands
from relay.spec.job import Job
from relay.spec.run import Gate, Preflight, Reference, Run, Setting, Specification
from relay.spec.setting import Shape
from relay.spec.site import Site

RESULTS = Path("results")
SPEEDS = RESULTS / "speeds.json"
PREFLIGHT_MINUTES = 10


@dataclass(frozen=True)
class PlannedSetting:
    """A setting that can run, with its id; `comparison` is its place in the config."""

    id: str
    setting: Setting
    comparison: int
    segment: Segment | None
    repeats: int


@dataclass(frozen=True)
class Skipped:
    """A setting that cannot run, and why."""

    setting: Setting
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class ExpectedStart:
    """When the queue would start a job of a shape if it were submitted now; `refused`: Slurm would not take it."""

    line: str
    refused: bool = False


@dataclass
class Plan:
    """What there is to do, in the order of submission.

    `runs` are interleaved: all settings of repeat 0 in random order, then all of repeat 1, so that a slow
    hour hits all alike. `gates`, `references` and `preflights` are by id; `gate_of` leads from a setting's id to its
    gate's, `reference_of` from a gate's id to its reference's; `preflight_of` from the id of a setting, gate or
    reference to that of the preflight of its shape and stack. `strategies` are the names in the config, those skipped
    included. `site` is None where the runs go to this machine.
    """

    config: Config
    root: Path
    site: Site | None
    strategies: list[str]
    speeds: Path = SPEEDS
    settings: list[PlannedSetting] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    gates: dict[str, Gate] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)
    preflights: dict[str, Preflight] = field(default_factory=dict)
    gate_of: dict[str, str] = field(default_factory=dict)
    reference_of: dict[str, str] = field(default_factory=dict)
    preflight_of: dict[str, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _ends: dict[str, list[int]] = field(default_factory=dict, repr=False)
    _environments: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)

    def gate(self, run: Run) -> str:
        """The id of the gate that a run goes through."""
        return self.gate_of[run.setting_id]

    def preflight(self, specification: Specification) -> str:
        """The id of the preflight that a run, gate or reference waits for, on a cluster."""
        return self.preflight_of[specification.setting_id if isinstance(specification, Run) else specification.id]

    def job(self, specification: Specification) -> Job | None:
        """What a job of a run, gate, reference, probe or preflight asks of Slurm; None on this machine."""
        if self.site is None:
            return None
        minutes = PREFLIGHT_MINUTES if isinstance(specification, Preflight) else self.config.runtime_minutes
        found = self._environment(specification.stack, specification.shape.device)
        return shapes.job(specification.shape, self.site, self.config, minutes, found)

    def prepare(self) -> None:
        """Before anything runs: ask whether Slurm would take the jobs, and write down all that they have to know.

        The specifications are no outputs of a rule: Snakemake would not make what depends on a file that is made again,
        and would not say so. Raises UserError where Slurm refuses a job, and for results of another version.
        """
        check_layout(RESULTS)
        if refused := self.refused:
            raise UserError(refused[0])
        kinds: list[tuple[str, str, Sequence[Specification]]] = [
            ("runs", "run", self.runs),
            ("equivalence/gates", "gate", list(self.gates.values())),
            ("equivalence/references", "reference", list(self.references.values())),
        ]
        for folder, name, specifications in kinds:
            for specification in specifications:
                specification.write(RESULTS / folder / specification.id / f"{name}.json", self.job(specification))

    @property
    def refused(self) -> list[str]:
        """Why Slurm would not take a job, a line for each shape."""
        return [start.line for start in self.expected_starts if start.refused]

    @cached_property
    def expected_starts(self) -> list[ExpectedStart]:
        """When the queue would start a job of each shape if it were submitted now; why it would refuse it, if so."""
        return list(self._asked_starts())

    def _asked_starts(self) -> Iterator[ExpectedStart]:
        if self.site is None or not commands.available():
            return
        now = datetime.now().astimezone()
        for each in {self.preflight(run): run for run in self.runs}.values():
            job = self.job(each)
            assert job is not None
            what = f"a job of {_words(each.shape)}, {job.tasks} × {job.cpus_per_task} CPUs"
            try:
                start = commands.expected_start(shapes.sbatch_flags(job, self.site))
            except Unavailable as error:
                yield ExpectedStart(f"expected start of {what}: not known: {error}")
            except UserError as error:
                yield ExpectedStart(f"Slurm refuses, for {self.site.file}, {what}: {error}", refused=True)
            else:
                minutes = max(0.0, (start - now).total_seconds() / 60) if start else 0.0
                yield ExpectedStart(f"expected start of {what}: in {minutes:.0f} minutes, says sbatch --test-only")

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
        asking = [planned.setting.shape for planned in self.settings]
        asking += [gate.shape for gate in self.gates.values()]
        asking += [reference.shape for reference in self.references.values()]
        found = (shapes.partition_for(shape, self.site, self.config)[0] for shape in asking)
        used = [partition for partition in found if partition]
        missing = [*self.site.missing(self.config.runtime_minutes, used), *login_node.unready(self.site)]
        return [*missing, *unfit_folders(Path.cwd(), self.root.resolve(), Path(sys.prefix))]

    @cached_property
    def _by_id(self) -> dict[str, PlannedSetting]:
        return {planned.id: planned for planned in self.settings}

    @cached_property
    def _measured(self) -> dict[str, float]:
        return segments.read_speeds(self.speeds)

    def segments(self, run: Run) -> list[int]:
        """The steps at which the run's jobs end, ascending. Raises UserError where a speed is missing."""
        if run.setting_id not in self._ends:
            length = self.steps_in_a_job(self._by_id[run.setting_id])
            self._ends[run.setting_id] = segments.ends(run.length.total_steps, length)
        return self._ends[run.setting_id]

    def steps_in_a_job(self, planned: PlannedSetting) -> int:
        """How many steps each job of a setting's runs does. Raises UserError where a speed is missing."""
        segment, length = planned.segment, planned.setting.length
        return segments.steps_in_a_job(
            segment,
            steps_per_epoch=length.steps_per_epoch,
            total_steps=length.total_steps,
            seconds_per_step=self._measured.get(planned.id) if segment and segment.minutes else None,
        )

    def previous_end(self, run: Run, end: int) -> int:
        """Where the job before the one that ends at `end` ended, 0 for the first. ValueError if none does."""
        ends = self.segments(run)
        place = ends.index(end)
        return ends[place - 1] if place else 0

    @property
    def unmeasured(self) -> list[Run]:
        """The first run of each setting whose segment is in minutes and whose speed is not measured yet."""
        waiting = {planned.id for planned in self.settings if planned.segment and planned.segment.minutes}
        missing = waiting - set(self._measured)
        return [run for run in self.runs if run.setting_id in missing and run.repeat == 0]

    def check_measured(self) -> None:
        """Raises UserError where jobs are given in minutes and what a step takes is not known yet."""
        for run in self.runs:
            self.segments(run)

    def runs_of(self, strategy: str) -> list[Run]:
        """The strategy's runs, in the order of submission; none where it is skipped."""
        return [run for run in self.runs if run.strategy.name == strategy]

    def skipped_of(self, strategy: str) -> list[Skipped]:
        """The strategy's settings that cannot run."""
        return [skipped for skipped in self.skipped if skipped.setting.strategy.name == strategy]

    def to_json(self) -> dict[str, Any]:
        """What `results/plan.json` holds: for the comparison, which knows nothing of the config."""
        runs = [
            {
                "id": run.id,
                "setting": run.setting_id,
                "gate": self.gate(run),
                "segments": self.segments(run),
                "reference": self.reference_of[self.gate(run)],
                "preflight": self.preflight(run) if self.site else None,
            }
            for run in self.runs
        ]
        skipped = [{"setting": asdict(each.setting), "reasons": each.reasons} for each in self.skipped]
        return {"runs": runs, "skipped": skipped, "margin": self.config.margin}


def _words(shape: Shape) -> str:
    return f"{shape.nodes} × {shape.devices_per_node} {shape.device}"
