"""The plan: which runs there are, in which order, through which gate each goes, and what is skipped and why.

It imports no torch, and takes milliseconds: it is made again inside every job.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from relay import checks, fingerprint, requirements, segments, settings
from relay.catalogue import DatasetSpec, TaskSpec
from relay.config import Config, Segment
from relay.requirements import Requirements
from relay.run import Run

ROOT = Path(__file__).resolve().parents[2]
SPEEDS = Path("results/speeds.json")


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
    hour hits all alike. `gates` and `references` are runs by id; `gate_of` and `reference_of` lead from a
    run's id to its gate's, and from that to its reference's. `skipped` are rows with the columns known and a
    `reason`; `strategies` are the names in the config, those skipped included.
    """

    config: Config
    settings: list[Setting]
    runs: list[Run]
    gates: dict[str, Run]
    references: dict[str, Run]
    gate_of: dict[str, str]
    reference_of: dict[str, str]
    skipped: list[dict[str, Any]]
    strategies: list[str]
    warnings: list[str]
    speeds: Path = SPEEDS
    _ends: dict[str, list[int]] = field(default_factory=dict, repr=False)

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
            for r in self.runs
        ]
        return {"runs": runs, "skipped": self.skipped, "margin": self.config.margin}


def _columns(run: Run) -> dict[str, Any]:
    """A run as a row of the table: its task by name, and no paths."""
    left_out = ("task", "dataset", "strategy_file", "divides")
    columns = {name: value for name, value in vars(run).items() if name not in left_out}
    return {
        **columns,
        "task": run.task.name,
        "world_size": run.world_size,
        "learning_rate": run.task.learning_rate,
    }


def plan(
    config: Config,
    *,
    root: Path = ROOT,
    gpus: Callable[[], int] | int = settings.count_gpus,
    speeds: Path = SPEEDS,
) -> Plan:
    """The plan of a config.

    `root` is the project's folder (locks, the tasks' source); `gpus` is how many this machine has, `speeds`
    the file with measured seconds per step. Raises UserError for an unknown strategy or option, and for a
    strategy, source or lock that cannot be read.
    """
    files = requirements.find([Path(folder) for folder in config.strategy_folders])
    settings.check_strategies(config, files)
    names = list(dict.fromkeys(c.strategy for c in config.comparisons))
    needs = {name: requirements.read(files[name]) for name in names}
    settings.check_options(config, needs)
    found = gpus if isinstance(gpus, int) else gpus()
    device = config.device if config.device != "auto" else ("cuda" if found else "cpu")
    here = settings.Here(device=device, gpus=found if config.device == "auto" else None)
    planner = _Planner(config, root, files, needs, here)
    planner.add_all()
    return planner.finish(names, speeds)


class _Planner:
    """Goes through the combinations once, and collects."""

    def __init__(
        self,
        config: Config,
        root: Path,
        files: dict[str, Path],
        needs: dict[str, Requirements],
        here: settings.Here,
    ) -> None:
        self.config, self.root, self.files, self.needs, self.here = config, root, files, needs, here
        self.task, self.dataset = settings.task_and_dataset(config)
        self.task_source = fingerprint.source_digest(fingerprint.task_sources(root, self.task.network))
        self.gate_source, self.reference_source = (
            fingerprint.source_digest(fingerprint.package_sources(root, names))
            for names in (fingerprint.GATE_SOURCES, fingerprint.REFERENCE_SOURCES)
        )
        self.strategy_source = {
            name: fingerprint.source_digest(fingerprint.strategy_sources(files[name])) for name in needs
        }
        self.locks: dict[str, str | None] = {}
        self.settings: dict[str, Setting] = {}
        self.skipped: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def lock(self, stack: str) -> str | None:
        """The digest of the versions that a stack's lock pins, or None where it has no lock."""
        if stack not in self.locks:
            path = self.root / "envs" / f"{stack}.txt"
            self.locks[stack] = fingerprint.fingerprint(fingerprint.lock_lines(path)) if path.exists() else None
        return self.locks[stack]

    def identity(self, run: Run, *, leave_out: tuple[str, ...] = (), **sources: str) -> str:
        return fingerprint.identity(
            run, leave_out=leave_out, task=self.task_source, lock=self.lock(run.stack), **sources
        )

    def add_all(self) -> None:
        """Every combination of the config becomes a setting or a skipped row."""
        for record in settings.expand(self.config.comparisons).to_dict("records"):
            row = {str(name): value for name, value in record.items()}
            needs = self.needs[row["strategy"]]
            columns = settings.resolve(row, config=self.config, needs=needs, task=self.task, here=self.here)
            reasons = settings.problems(
                row, columns, config=self.config, needs=needs, dataset=self.dataset, here=self.here
            )
            if self.lock(needs.stack) is None:
                reasons.append(f"stack {needs.stack} has no lock envs/{needs.stack}.txt")
            if reasons:
                skipped = {**columns, "reason": "; ".join(reasons)}
                if skipped not in self.skipped:
                    self.skipped.append(skipped)
            else:
                self._add(columns, row["comparison"])

    def _add(self, columns: dict[str, Any], index: int) -> None:
        comparison = self.config.comparisons[index]
        run = self._run(columns, self.task, self.dataset)
        name = f"{run.strategy}-{self.identity(run, leave_out=('repeat', 'seed'))}"
        setting = Setting(
            run=replace(run, setting=name),
            comparison=index,
            segment=comparison.segment or self.config.segment,
            repeats=comparison.repeats or self.config.repeats,
        )
        known = self.settings.setdefault(name, setting)
        if known is setting:
            self._warn_of_short_jobs(setting)
            return
        repeats = max(known.repeats, setting.repeats)
        self.settings[name] = replace(known, repeats=repeats)
        place = "twice in" if known.comparison == index else f"in comparisons[{known.comparison}] and"
        other = "" if known.segment == setting.segment else ", with the segment of the former"
        self.warnings.append(f"{name} is {place} comparisons[{index}]: runs once, {repeats} repeats{other}")

    def _warn_of_short_jobs(self, setting: Setting) -> None:
        if setting.segment and setting.segment.minutes:
            return  # its steps are not known yet, and are many
        length = segments.steps_in_a_job(
            setting.segment,
            steps_per_epoch=setting.run.steps_per_epoch,
            total_steps=setting.run.total_steps,
            seconds_per_step=None,
        )
        if length <= self.config.warmup_steps:
            self.warnings.append(
                f"{setting.run.setting} (comparisons[{setting.comparison}]) has jobs of {length} steps: "
                f"warmup_steps {self.config.warmup_steps} leave nothing to time"
            )

    def _run(self, columns: dict[str, Any], task: TaskSpec, dataset: DatasetSpec) -> Run:
        """The setting as a run whose id, setting and repeat are still to be filled in."""
        config, batch = self.config, columns["global_batch_size"]
        steps_per_epoch = dataset.train_count // batch
        return Run(
            id="",
            setting="",
            repeat=0,
            seed=config.seed,
            task=settings.scaled(task, columns["learning_rate_scaling"], batch),
            dataset=dataset,
            strategy_file=_short(self.files[columns["strategy"]]),
            divides=tuple(self.needs[columns["strategy"]].divides),
            epochs=config.epochs,
            steps_per_epoch=steps_per_epoch,
            total_steps=round(config.epochs * steps_per_epoch),
            evaluate_every_steps=max(1, round(config.evaluate_every_epochs * steps_per_epoch)),
            warmup_steps=config.warmup_steps,
            checkpoint_minutes=config.checkpoint_minutes,
            **{name: value for name, value in columns.items() if name not in ("task", "world_size")},
        )

    def finish(self, strategies: list[str], speeds: Path) -> Plan:
        """Repeats, their order, and the gates they go through."""
        made = Plan(
            self.config,
            list(self.settings.values()),
            [],
            {},
            {},
            {},
            {},
            self.skipped,
            strategies,
            self.warnings,
            speeds,
        )
        gates = {name: self._gate(setting.run, made) for name, setting in self.settings.items()}
        order = random.Random(self.config.seed)
        for repeat in range(max((s.repeats for s in made.settings), default=0)):
            repeated = [s.run for s in made.settings if repeat < s.repeats]
            order.shuffle(repeated)
            for run in repeated:
                run = replace(run, repeat=repeat, seed=self.config.seed + repeat)
                run = replace(run, id=f"{run.strategy}-{self.identity(run)}")
                made.runs.append(run)
                made.gate_of[run.id] = gates[run.setting]
        return made

    def _gate(self, run: Run, made: Plan) -> str:
        """The id of the gate that the run goes through; it and its reference are entered into the plan."""
        gate = checks.gate(run, self.config.gate.seed)
        strategy_source = self.strategy_source[run.strategy]
        name = f"{run.strategy}-{self.identity(gate, strategy=strategy_source, gate=self.gate_source)}"
        if name not in made.gates:
            made.gates[name] = replace(gate, id=name, setting=name)
            made.reference_of[name] = self._reference(gate, made)
        return name

    def _reference(self, gate: Run, made: Plan) -> str:
        """The id of the single process that the gate compares with, on the same kind of device."""
        reference = checks.reference(gate)
        name = f"{reference.task.name}-{self.identity(reference, reference=self.reference_source)}"
        made.references.setdefault(name, replace(reference, id=name, setting=name))
        return name


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    path = Path.cwd() / path
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
