"""From the config to the plan: which runs there are, in which order, through which gate each goes, what is skipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.environments import login_node
from relay.planning import checks, settings, shapes, skips
from relay.planning.cautions import cautions
from relay.planning.config import Config
from relay.planning.plan import SPEEDS, Plan, Setting
from relay.process.cpus import granted
from relay.spec import identity, requirements
from relay.spec.catalogue import DatasetSpec, TaskSpec
from relay.spec.requirements import Requirements
from relay.spec.run import Run
from relay.spec.site import Site

ROOT = Path(__file__).resolve().parents[3]


def plan(
    config: Config,
    *,
    root: Path = ROOT,
    gpus: Callable[[], int] | int = settings.count_gpus,
    cpus: int | None = None,
    speeds: Path = SPEEDS,
    site: Site | None = None,
) -> Plan:
    """The plan of a config.

    `root` is the project's folder (locks, the tasks' source); `gpus` and `cpus` are how many this machine has, by
    default those that are found; `speeds` is the file with measured seconds per step; `site` is the cluster whose nodes
    the runs go to.
    Raises UserError for an unknown strategy or option, and for a strategy, source or lock that cannot be read.
    """
    files = requirements.find([Path(folder) for folder in config.strategy_folders])
    settings.check_strategies(config, files)
    names = list(dict.fromkeys(c.strategy for c in config.comparisons))
    needs = {name: requirements.read(files[name]) for name in names}
    settings.check_options(config, needs)
    here = _here(config.device, gpus, cpus or len(granted()), site)
    planner = _Planner(config, root, files, needs, here)
    planner.add_all()
    return planner.finish(names, speeds)


def _here(device: str, gpus: Callable[[], int] | int, cpus: int, site: Site | None) -> settings.Here:
    """Where the runs go. `auto` is settled here, once: a job must not find another answer on its node."""
    if site is not None:
        chosen = "cuda" if any(p.device == "cuda" for p in site.partitions) else "cpu"
        return settings.Here(device=chosen if device == "auto" else device, gpus=None, cpus=None, site=site)
    if device != "auto":
        return settings.Here(device=device, gpus=None, cpus=cpus)
    found = gpus if isinstance(gpus, int) else gpus()
    return settings.Here(device="cuda" if found else "cpu", gpus=found, cpus=cpus)


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
        self.task_source = identity.source_digest(identity.task_sources(root, self.task.network))
        self.gate_source, self.reference_source = (
            identity.source_digest(identity.module_sources(root, *modules))
            for modules in (("equivalence.gate", "strategies.base"), ("equivalence.reference",))
        )
        self.strategy_source = {name: identity.source_digest(identity.strategy_sources(files[name])) for name in needs}
        self.locks: dict[str, str | None] = {}
        self.settings: dict[str, Setting] = {}
        self.skipped: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def lock(self, stack: str) -> str | None:
        """The digest of the versions that a stack's lock pins, or None where it has no lock."""
        if stack not in self.locks:
            path = self.root / "envs" / f"{stack}.txt"
            self.locks[stack] = identity.fingerprint(identity.lock_lines(path)) if path.exists() else None
        return self.locks[stack]

    def identity(self, run: Run, *, leave_out: tuple[str, ...] = (), **sources: str) -> str:
        return identity.identity(run, leave_out=leave_out, task=self.task_source, lock=self.lock(run.stack), **sources)

    def add_all(self) -> None:
        """Every combination of the config becomes a setting or a skipped row."""
        for record in settings.expand(self.config.comparisons).to_dict("records"):
            row = {str(name): value for name, value in record.items()}
            needs = self.needs[row["strategy"]]
            columns = settings.resolve(row, config=self.config, needs=needs, task=self.task, here=self.here)
            reasons = skips.problems(
                row,
                columns,
                config=self.config,
                needs=needs,
                task=self.task,
                dataset=self.dataset,
                here=self.here,
            )
            if self.here.site and not reasons:
                reasons += self._site_problems(self._run(columns, self.task, self.dataset), self.here.site)
            if self.lock(needs.stack) is None:
                reasons.append(f"stack {needs.stack} has no lock envs/{needs.stack}.txt")
            if reasons:
                skipped = {**columns, "reason": "; ".join(reasons)}
                if skipped not in self.skipped:
                    self.skipped.append(skipped)
            else:
                self._add(columns, row["comparison"])

    def _site_problems(self, run: Run, site: Site) -> Iterator[str]:
        """Why the cluster cannot take the run."""
        partition, reason = shapes.partition_for(run, site, self.config)
        if partition is None:
            yield reason
        try:
            login_node.asked(site, run.stack, self.root, device=run.device)
        except UserError as error:
            yield str(error)

    def _add(self, columns: dict[str, Any], index: int) -> None:
        comparison = self.config.comparisons[index]
        run = self._placed(self._run(columns, self.task, self.dataset))
        name = f"{run.strategy}-{self.identity(run, leave_out=('repeat', 'seed'))}"
        setting = Setting(
            run=replace(run, setting=name),
            comparison=index,
            segment=comparison.segment or self.config.segment,
            repeats=comparison.repeats or self.config.repeats,
        )
        known = self.settings.setdefault(name, setting)
        if known is setting:
            self.warnings += cautions(setting, self.config, self.here)
            return
        repeats = max(known.repeats, setting.repeats)
        self.settings[name] = replace(known, repeats=repeats)
        place = "twice in" if known.comparison == index else f"in comparisons[{known.comparison}] and"
        other = "" if known.segment == setting.segment else ", with the segment of the former"
        self.warnings.append(f"{name} is {place} comparisons[{index}]: runs once, {repeats} repeats{other}")

    def _placed(self, run: Run) -> Run:
        """The run with what the site says of its nodes and bears on its speed: the kind of GPU, and the software."""
        site = self.here.site
        if site is None:
            return run
        partition, _ = shapes.partition_for(run, site, self.config)
        asked = login_node.asked(site, run.stack, self.root)
        software = {name: asked[name] for name in ("mode", "build", "packages", "conda", "image", "modules")}
        return replace(
            run,
            gpu_name=partition.gpu_name if partition else None,
            software=f"{asked['mode']}-{identity.fingerprint(software)}",
        )

    def _run(self, columns: dict[str, Any], task: TaskSpec, dataset: DatasetSpec) -> Run:
        """The setting as a run whose id, setting and repeat are still to be filled in."""
        config, batch, needs = self.config, columns["global_batch_size"], self.needs[columns["strategy"]]
        steps_per_epoch = dataset.train_count // batch
        return Run(
            id="",
            setting="",
            repeat=0,
            seed=config.seed,
            task=settings.scaled(task, columns["learning_rate_scaling"], batch),
            dataset=dataset,
            strategy_file=_short(self.files[columns["strategy"]]),
            divides=tuple(needs.divides),
            lossy=needs.lossy_options(columns["options"]),
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
            config=self.config,
            root=self.root,
            site=self.here.site,
            settings=list(self.settings.values()),
            runs=[],
            gates={},
            references={},
            preflights={},
            gate_of={},
            reference_of={},
            preflight_of={},
            skipped=self.skipped,
            strategies=strategies,
            warnings=self.warnings,
            speeds=speeds,
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
                made.preflight_of[run.id] = self._preflight(run, made)
                # A gate's own shape differs in what does not bear on it: CPUs and threads.
                made.preflight_of.setdefault(gates[run.setting], made.preflight_of[run.id])
        for gate, reference in made.reference_of.items():
            # A reference waits for the smallest shape that is compared with it: a large one's fault is none of its own.
            candidates = [made.preflight_of[gate], made.preflight_of.get(reference, made.preflight_of[gate])]
            made.preflight_of[reference] = min(candidates, key=lambda name: made.preflights[name].world_size)
        return made

    def _preflight(self, run: Run, made: Plan) -> str:
        """The id of the preflight of the run's shape and stack; it is entered into the plan."""
        digest = identity.fingerprint(checks.shape(run))
        name = f"{run.device}-{run.nodes}x{run.processes_per_node}-{run.launcher}-{digest}"
        made.preflights.setdefault(name, checks.preflight(run, name))
        return name

    def _gate(self, run: Run, made: Plan) -> str:
        """The id of the gate that the run goes through; it and its reference are entered into the plan."""
        gate = checks.gate(run, self.config.gate.seed, self.config.gate.steps)
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
