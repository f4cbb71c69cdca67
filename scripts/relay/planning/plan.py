"""The plan: all runs, gates, references and preflights, with their chains and jobs. `planner` makes it from the config.

It imports no torch, so that planning takes milliseconds. Jobs read it (`handed`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from relay.base.errors import NoNode, Unavailable, UserError
from relay.base.files import read_json_or
from relay.environments import login_node
from relay.planning import handed, right_size, segments, shapes, specifications, starts
from relay.planning.config import Config
from relay.planning.config_blocks import Segment
from relay.planning.earlier import Earlier
from relay.planning.here import unfit_paths
from relay.planning.right_size import Requests
from relay.planning.stacks import Stacks
from relay.planning.starts import ExpectedStart
from relay.run_folder import proofs
from relay.run_folder.layout import check_layout
from relay.run_folder.trust import make_all_own, make_own
from relay.slurm import commands
from relay.slurm.held import Held
from relay.spec.job import Job
from relay.spec.run import Gate, LibTorch, Preflight, Reference, Run, Setting, Specification, SpotCheck, TaskLook
from relay.spec.setting import Shape
from relay.spec.site import Site

RESULTS = Path("results")
SPEEDS = RESULTS / "speeds.json"
PREFLIGHT_MINUTES = 10


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


@dataclass
class Plan:
    """All that a config asks for, in the order of submission.

    `runs` are interleaved: all settings of repeat 0 in random order, then all of repeat 1. A slow hour of the cluster
    therefore affects all settings alike.
    `gates`, `references` and `preflights` are by id, `spot_checks` and `libtorch` by their settings' ids. `gate_of`
    maps a setting's id to its gate's. `reference_of` maps a gate's id to its reference's. `preflight_of` maps the id of
    a setting, gate or reference to its preflight's.
    `looks` are jobs that look at the task, by the names of their cards; with any, nothing else is known.
    `stacks` are those of the software that the jobs use.
    `strategies` are all names in the config, skipped ones included. `site` is None where the runs go to this machine,
    or within the allocation that the driver holds (`held`).
    `requests` is what jobs ask for by measurement. `over_budget` says why the plan costs too much; '' if it does not.
    `dropped` says of settings why they get no further repeats.
    """

    config: Config
    root: Path
    site: Site | None
    strategies: list[str]
    speeds: Path = SPEEDS
    held: Held | None = None
    stacks: Stacks = field(default_factory=lambda: Stacks("current"))
    requests: Requests = field(default_factory=Requests)
    looks: dict[str, TaskLook] = field(default_factory=dict)
    settings: list[PlannedSetting] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    gates: dict[str, Gate] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)
    preflights: dict[str, Preflight] = field(default_factory=dict)
    spot_checks: dict[str, SpotCheck] = field(default_factory=dict)
    libtorch: dict[str, LibTorch] = field(default_factory=dict)
    gate_of: dict[str, str] = field(default_factory=dict)
    reference_of: dict[str, str] = field(default_factory=dict)
    preflight_of: dict[str, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    over_budget: str = ""
    dropped: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, list[int]] = field(default_factory=dict, repr=False)
    _resources: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict, repr=False)
    _left_out: dict[Shape, list[str]] = field(default_factory=dict, repr=False)
    _environments: dict[tuple[str, str, str | None], dict[str, Any]] = field(default_factory=dict, repr=False)

    def gate(self, run: Run) -> str:
        """The id of the gate that a run has to pass first; that of the verdict "not proven" for scripts."""
        return self.gate_of[run.setting_id]

    def spot_check_runs(self, setting: str) -> list[Run]:
        """The runs that a setting's spot check computes steps of."""
        return [run for run in self.runs if run.setting_id == setting]

    def libtorch_run(self, setting: str) -> Run:
        """The run whose trained model a C++ program runs: the setting's first repeat."""
        return next(run for run in self.runs if run.setting_id == setting and run.repeat == 0)

    def preflight(self, specification: Specification) -> str:
        """The id of the preflight that a run, gate or reference waits for on a cluster."""
        return self.preflight_of[specification.setting_id if isinstance(specification, Run) else specification.id]

    def job(self, specification: Specification) -> Job | None:
        """What a specification's job asks Slurm for; None where it runs on this machine."""
        if self.site:
            return self.requests.applied(specification, self.declared(specification))
        shape, minutes = specification.shape, self.config.runtime_minutes
        environment = self._environment(specification.stack, shape.device, None)
        return self.held.job(shape, minutes, environment) if self.held else None

    def declared(self, specification: Specification) -> Job:
        """What a specification's job would ask Slurm for if nothing had been measured. Only for a plan with a site."""
        assert self.site is not None
        shape, minutes = specification.shape, self.config.runtime_minutes
        if isinstance(specification, Preflight):
            minutes = self._preflight_minutes(shape)
        program = specification.kind if isinstance(specification, LibTorch) else None
        environment = self._environment(specification.stack, shape.device, program)
        return shapes.job(shape, self.site, self.config, minutes, environment)

    def resources(self, specification: Specification) -> dict[str, Any]:
        """What a specification's job asks Slurm for, and adds to a user's limits, as resources of Snakemake's.

        They are kept, because Snakemake asks for each of them by itself.
        """
        known = (type(specification).__name__, specification.id)
        if known not in self._resources:
            job = self.job(specification)
            assert job is not None, "only jobs on a cluster have resources"
            assert self.site is not None
            counted = shapes.counted(specification.shape, self.site, self.config)
            job = replace(job, memory_mb=self.requests.memory_mb(specification, job))
            asked = shapes.resources(job, self.site, self._left_out.get(specification.shape, ()))
            self._resources[known] = asked | counted
        return self._resources[known]

    def more_memory(self, specification: Specification, had_mb: int) -> int | None:
        """What a job asks for that was killed with `had_mb` of memory on each node; as much where no node has more.

        None where no memory is asked for. All later jobs of its kind ask for it as well, also in later calls.
        """
        if self.site is None or not had_mb:
            return None
        partition, _ = shapes.partition_for(specification.shape, self.site, self.config)
        known = self.requests.raised.get(right_size.name_of(specification), 0)
        wanted = known if known > had_mb else had_mb * right_size.MORE
        most = partition.memory_mb_per_node if partition else None
        more = min(wanted, most) if most else wanted
        if more > had_mb:
            self.requests.raised[right_size.name_of(specification)] = more
            self._resources.clear()
            self.requests.write(RESULTS)
            # Not those of other repeats: they may be in the queue, with the memory that their files declare.
            specifications.write(RESULTS, self._specifications, self.job, only=specification)
        return max(more, had_mb)

    def leave_out(self, specification: Specification, node: str) -> bool:
        """Have jobs of this shape avoid a node for the rest of this call; False where no other nodes could take them.

        Not those of other shapes: they may need all nodes that there are.
        """
        if self.site is None:
            return False
        job = self.job(specification)
        assert job is not None
        nodes = [*self._left_out.get(specification.shape, ()), node]
        try:
            commands.expected_start(shapes.sbatch_flags(job, self.site, nodes), job.partition)
        except (NoNode, Unavailable):  # it waits in the queue until others are back, or nobody can tell
            pass
        except UserError:
            return False
        self._left_out[specification.shape] = nodes
        self._resources.clear()
        return True

    def _preflight_minutes(self, shape: Shape) -> int:
        """The time limit of a preflight: a few minutes, within the shortest and the longest that the cluster allows."""
        assert self.site is not None
        partition, _ = shapes.partition_for(shape, self.site, self.config)
        minutes = max(PREFLIGHT_MINUTES, self.site.min_minutes or 0)
        return min(minutes, (partition and partition.max_minutes) or minutes)

    def prepare(self) -> None:
        """Check that Slurm would accept the jobs, then write the specifications of runs, gates and references.

        The specifications are not the outputs of a rule. If they were, Snakemake would skip the jobs that depend on a
        changed one, without a message. Raises UserError where Slurm refuses a job, and for results of another version.
        """
        make_own(RESULTS)
        check_layout(RESULTS)
        make_all_own(RESULTS, self.config.checkpoint_writers, [self.root / name for name in handed.WORKFLOW])
        if refused := self.refused:
            raise UserError(refused[0])
        for start in self.expected_starts:
            if start.waits:
                print(start.line, file=sys.stderr)
        if edited := self._edited():
            print(edited, file=sys.stderr)
        self.requests.write(RESULTS)
        specifications.freeze_code(RESULTS, self._specifications)
        specifications.write(RESULTS, self._specifications, self.job)
        for run in self.runs:
            proofs.note(RESULTS / "runs" / run.id, self.gate(run))

    def _edited(self) -> str:
        """What it means that the same config makes other runs than in the last call; '' where it does not."""
        read = read_json_or(RESULTS / "plan.json", {})
        before = read if isinstance(read, dict) else {}
        earlier, now = {run["id"] for run in before.get("runs", ())}, {run.id for run in self.runs}
        if not earlier or earlier & now or before.get("config") != json.loads(json.dumps(self.config.written())):
            return ""
        what = "the code, or the versions of its packages,"
        return f"{what} changed since the last call: its {len(now)} runs are new. Earlier results stay in results/runs"

    @property
    def _specifications(self) -> dict[str, Iterable[Specification]]:
        """By the places of their files."""
        return {
            "runs/{id}/run.json": self.runs,
            "equivalence/gates/{id}/gate.json": self.gates.values(),
            "equivalence/references/{id}/reference.json": self.references.values(),
            "equivalence/spot_checks/{id}/spot_check.json": self.spot_checks.values(),
        }

    @property
    def refused(self) -> list[str]:
        """Why Slurm would refuse a job, one line for each shape."""
        return [start.line for start in self.expected_starts if start.refused]

    @cached_property
    def expected_starts(self) -> list[ExpectedStart]:
        """For a job of each shape: when the queue would start it if it were submitted now, or why Slurm refuses it."""
        return list(starts.expected(self))

    def _environment(self, stack: str, device: str, program: str | None) -> dict[str, Any]:
        """A stack's environment for the nodes. It is the same for all jobs, so that it is made once and kept."""
        known = (stack, device, program)
        if known not in self._environments:
            self._environments[known] = login_node.asked(self.site, stack, self.root, device=device, program=program)
        return self._environments[known]

    @property
    def unready(self) -> list[str]:
        """What the user must fill in before jobs can be submitted, one line for each thing."""
        if self.site is None:
            return []
        needed = [planned.setting.shape for planned in self.settings]
        needed += [gate.shape for gate in self.gates.values()]
        needed += [reference.shape for reference in self.references.values()]
        needed += [check.shape for check in self.spot_checks.values()]
        partitions = (shapes.partition_for(shape, self.site, self.config)[0] for shape in needed)
        used = [partition for partition in partitions if partition]
        missing = [*self.site.missing(self.config.runtime_minutes, used), *login_node.unready(self.site)]
        missing += self.stacks.unrecorded
        return [*missing, *unfit_paths(Path.cwd(), self.root.resolve(), sys.prefix, self.config.task)]

    @cached_property
    def earlier(self) -> Earlier:
        """What runs of these strategies have measured in the folder of results."""
        return Earlier(self.speeds.parent, self.strategies)

    @cached_property
    def _by_id(self) -> dict[str, PlannedSetting]:
        return {planned.id: planned for planned in self.settings}

    @cached_property
    def measured(self) -> dict[str, float]:
        """Measured seconds per step, by the settings' ids."""
        return segments.read_speeds(self.speeds)

    def segments(self, run: Run) -> list[int]:
        """The steps at which the run's jobs end, ascending. Raises UserError where a speed is missing."""
        if run.setting_id not in self._ends:
            length = self.steps_in_a_job(self._by_id[run.setting_id])
            self._ends[run.setting_id] = segments.ends(run.length.total_steps, length)
        return self._ends[run.setting_id]

    def steps_in_a_job(self, planned: PlannedSetting) -> int:
        """The number of steps in each job of a setting's runs. Raises UserError where a speed is missing."""
        segment, length = planned.segment, planned.setting.length
        return segments.steps_in_a_job(
            segment,
            steps_per_epoch=length.steps_per_epoch,
            total_steps=length.total_steps,
            seconds_per_step=self.measured.get(planned.id) if segment and segment.minutes else None,
        )

    def previous_end(self, run: Run, end: int) -> int:
        """The step at which the job that ends at `end` starts; 0 for the first job.

        Raises ValueError where no job ends at `end`.
        """
        ends = self.segments(run)
        place = ends.index(end)
        return ends[place - 1] if place else 0

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

    def runs_of(self, strategy: str) -> list[Run]:
        """The strategy's runs, in the order of submission; empty where the strategy is skipped."""
        return [run for run in self.runs if run.strategy.name == strategy]

    def skipped_of(self, strategy: str) -> list[Skipped]:
        """The strategy's settings that cannot run."""
        return [skipped for skipped in self.skipped if skipped.setting.strategy.name == strategy]

    def to_json(self) -> dict[str, Any]:
        """The content of `results/plan.json`, from which the comparison learns what was planned."""
        runs = [
            {
                "id": run.id,
                "setting": run.setting_id,
                "gate": self.gate(run),
                "segments": self.segments(run),
                "reference": self.reference_of.get(self.gate(run)),
                "preflight": self.preflight(run) if self.site else None,
                "taken": shapes.charged(run.shape, self.site, self.config),
            }
            for run in self.runs
        ]
        skipped = [{"setting": asdict(each.setting), "reasons": each.reasons} for each in self.skipped]
        told = {"margin": self.config.margin, "spot_checks": bool(self.spot_checks), "answer": self._answer_rules()}
        told |= {"dropped": self.dropped, "config": self.config.written()}
        return {"runs": runs, "skipped": skipped, **told}

    def _answer_rules(self) -> dict[str, Any]:
        """What the answer is made by, besides the margin."""
        site = self.site
        return {
            "least_efficiency": self.config.least_efficiency,
            "cores_per_gpu": site.cores_per_gpu if site else None,
            "price": site.price.model_dump() if site else None,
            **self.config.answer.model_dump(),
            "least_minutes": site.min_minutes if site else None,
            "most_minutes": self.config.runtime_minutes,
            "site_flags": shapes.site_flags(site) if site else [],
        }
