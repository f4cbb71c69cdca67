"""The plan: all runs, gates, references and preflights, with their chains and jobs. `planner` makes it from the config.

It imports no torch, so that planning takes milliseconds. Jobs read it (`handed`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from relay.base.grouped import grouped
from relay.config.blocks import Segment
from relay.config.config import Config
from relay.environments import login_node
from relay.environments.stacks import Stacks
from relay.planning import segments
from relay.slurm import shapes
from relay.slurm.held import Held
from relay.slurm.requested import Requests
from relay.spec.job import Job
from relay.spec.labels import described, setting_labels
from relay.spec.run import Gate, LibTorch, Preflight, Reference, Run, Setting, Specification, SpotCheck, TaskLook
from relay.spec.setting import Shape
from relay.spec.site import Site
from relay.spec.site_blocks import Charging, charging

RESULTS = Path("results")
PREFLIGHT_MINUTES = 10
# By rule: where its specifications have folders below the results, and what is there once a job is done.
PLACES = {
    "run": ("runs", "summary.json"),
    "gate": ("equivalence/gates", "verdict.json"),
    "reference": ("equivalence/references", "reference.pt"),
    "spot_check": ("equivalence/spot_checks", "verdict.json"),
    "preflight": ("preflight", "facts.json"),
}


def specification_place(rule: str, id: str) -> str:
    """Where the file of a specification lies below the results."""
    return f"{PLACES[rule][0]}/{id}/{rule}.json"


def output_place(rule: str, id: str) -> str:
    """Where that lies which is there once its job is done."""
    return "{}/{id}/{}".format(*PLACES[rule], id=id)


@dataclass(frozen=True)
class PlannedSetting:
    """A setting that can run, with its id. `comparison` is the index of its comparison in the config."""

    id: str
    setting: Setting
    comparison: int
    segment: Segment | None
    repeats: int


@dataclass(frozen=True)
class Skipped:
    """A setting that cannot run, and the reasons."""

    setting: Setting
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """All that a config asks for, in the order of submission. It does not change: another plan is another object.

    `runs` are interleaved: all settings of repeat 0 in random order, then all of repeat 1. A slow hour of the cluster
    therefore affects all settings alike.
    `gates`, `references` and `preflights` are by id, `spot_checks` and `libtorch` by their settings' ids. `gate_of`
    maps a setting's id to its gate's. `reference_of` maps a gate's id to its reference's. `preflight_of` maps the id of
    a setting, gate or reference to its preflight's.
    `looks` are jobs that look at the task, by the names of their cards; with any, nothing else is known.
    `stacks` are those of the software that the jobs use.
    `strategies` are all names in the config, skipped ones included. `site` is None where the runs go to this machine,
    or within the allocation that the driver holds (`held`).
    `requests` is what jobs ask for by measurement, `measured` the seconds per step that were, by the settings' ids.
    `over_budget` says why the plan costs too much; '' if it does not.
    `dropped` says of settings why they get no further repeats, `anchors` which are measured again (`rounds`).
    """

    config: Config
    root: Path
    site: Site | None
    strategies: Sequence[str]
    results: Path = RESULTS
    held: Held | None = None
    stacks: Stacks = field(default_factory=lambda: Stacks("current"))
    requests: Requests = field(default_factory=Requests)
    measured: Mapping[str, float] = field(default_factory=dict)
    looks: Mapping[str, TaskLook] = field(default_factory=dict)
    settings: Sequence[PlannedSetting] = ()
    runs: Sequence[Run] = ()
    gates: Mapping[str, Gate] = field(default_factory=dict)
    references: Mapping[str, Reference] = field(default_factory=dict)
    preflights: Mapping[str, Preflight] = field(default_factory=dict)
    spot_checks: Mapping[str, SpotCheck] = field(default_factory=dict)
    libtorch: Mapping[str, LibTorch] = field(default_factory=dict)
    gate_of: Mapping[str, str] = field(default_factory=dict)
    reference_of: Mapping[str, str] = field(default_factory=dict)
    preflight_of: Mapping[str, str] = field(default_factory=dict)
    skipped: Sequence[Skipped] = ()
    warnings: Sequence[str] = ()
    over_budget: str = ""
    dropped: Mapping[str, str] = field(default_factory=dict)
    anchors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    # What belongs to what

    def gate(self, run: Run) -> str:
        """The id of the gate that a run has to pass first; that of the verdict "not proven" for scripts."""
        return self.gate_of[run.setting_id]

    def spot_check_runs(self, setting: str) -> list[Run]:
        """The runs that a setting's spot check computes steps of."""
        return self._runs_of_setting.get(setting, [])

    def libtorch_run(self, setting: str) -> Run:
        """The run whose trained model a C++ program runs: the setting's first repeat."""
        return next(run for run in self._runs_of_setting[setting] if run.repeat == 0)

    @cached_property
    def _runs_of_setting(self) -> dict[str, list[Run]]:
        return grouped(self.runs, lambda run: run.setting_id)

    def preflight(self, specification: Specification) -> str:
        """The id of the preflight that a run, gate or reference waits for on a cluster."""
        return self.preflight_of[specification.setting_id if isinstance(specification, Run) else specification.id]

    def runs_of(self, strategy: str) -> list[Run]:
        """The strategy's runs, in the order of submission; empty where the strategy is skipped."""
        return [run for run in self.runs if run.strategy.name == strategy]

    def skipped_of(self, strategy: str) -> list[Skipped]:
        """The strategy's settings that cannot run."""
        return [skipped for skipped in self.skipped if skipped.setting.strategy.name == strategy]

    # Jobs

    def job(self, specification: Specification) -> Job | None:
        """What a specification's job asks Slurm for; None where it runs on this machine."""
        if self.site:
            return self.requests.applied(specification, self.job_by_config(specification))
        shape, minutes = specification.shape, self.config.runtime_minutes
        environment = self._environment(specification.stack, shape.device, None)
        return self.held.job(shape, minutes, environment) if self.held else None

    def job_by_config(self, specification: Specification) -> Job:
        """What a specification's job would ask Slurm for if nothing had been measured. Only for a plan with a site."""
        assert self.site is not None
        shape, minutes = specification.shape, self.config.runtime_minutes
        if isinstance(specification, Preflight):
            minutes = self._preflight_minutes(shape)
        program = specification.kind if isinstance(specification, LibTorch) else None
        environment = self._environment(specification.stack, shape.device, program)
        return shapes.job(shape, self.site, self.config, minutes, environment)

    def _preflight_minutes(self, shape: Shape) -> int:
        """The time limit of a preflight: a few minutes, within the shortest and the longest that the cluster allows."""
        assert self.site is not None
        partition, _ = shapes.partition_for(shape, self.site, self.config)
        minutes = max(PREFLIGHT_MINUTES, self.site.min_minutes or 0)
        return min(minutes, (partition and partition.max_minutes) or minutes)

    @cache  # noqa: B019 - a plan is there as long as its call
    def _environment(self, stack: str, device: str, program: str | None) -> dict[str, Any]:
        """A stack's environment for the nodes. It is the same for all jobs, so that it is made once and kept."""
        return login_node.environment_of(self.site, stack, self.root, device=device, program=program)

    @cache  # noqa: B019
    def conda(self, stack: str, root: Path) -> str | None:
        """What documents a stack's software for Snakemake. `root` has the files that name it: a copy's, in a job."""
        return login_node.conda_directive(self.site, stack, root)

    @cached_property
    def charging(self) -> Charging:
        """What CPUs and GPUs count as, also in the answer."""
        used = {each.setting.shape for each in self.settings}
        taken = [shapes.charged(shape, self.site, self.config) for shape in used]
        return charging(self.site.price, self.site.cores_per_gpu, taken) if self.site else Charging()

    @cached_property
    def labels(self) -> dict[str, str]:
        """What tells each setting from the others of its strategy, by id."""
        labels = setting_labels([described(each.setting) | {"setting": each.id} for each in self.settings])
        return dict(zip((each.id for each in self.settings), labels, strict=True))

    @cached_property
    def names(self) -> dict[str, str]:
        """A name for each setting, by id."""
        return {each.id: f"{each.setting.strategy.name} ({self.labels[each.id]})" for each in self.settings}

    # What was measured, and the chains that follow from it

    @cached_property
    def _by_id(self) -> dict[str, PlannedSetting]:
        return {planned.id: planned for planned in self.settings}

    def segments(self, run: Run) -> list[int]:
        """The steps at which the run's jobs end, ascending. Raises UserError where a speed is missing."""
        return self._ends(run.setting_id)

    @cache  # noqa: B019
    def _ends(self, setting: str) -> list[int]:
        planned = self._by_id[setting]
        return segments.ends(planned.setting.length.total_steps, self.steps_in_a_job(planned))

    def steps_in_a_job(self, planned: PlannedSetting) -> int:
        """The number of steps in each job of a setting's runs. Raises UserError where a speed is missing."""
        in_minutes = planned.segment is not None and planned.segment.minutes is not None
        speed = self.measured.get(planned.id) if in_minutes else None
        return segments.steps_in_a_job(planned.segment, planned.setting.length, speed)

    def previous_end(self, run: Run, end: int) -> int:
        """The step at which the job that ends at `end` starts; 0 for the first job.

        Raises ValueError where no job ends at `end`.
        """
        bounds = [0, *self.segments(run)]
        return bounds[bounds.index(end, 1) - 1]

    @property
    def unmeasured(self) -> list[Run]:
        """The first run of each setting whose segment is in minutes and whose speed is not measured yet."""
        in_minutes = {planned.id for planned in self.settings if planned.segment and planned.segment.minutes}
        missing = in_minutes - set(self.measured)
        return [run for run in self.runs if run.setting_id in missing and run.repeat == 0]

    def check_measured(self) -> None:
        """Raise UserError where a segment is in minutes and the time of a step is not measured yet."""
        for run in self.runs:
            self.segments(run)
