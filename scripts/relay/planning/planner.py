"""From the config to the plan: which runs there are, in which order, through which gate each goes, what is skipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from relay.base.errors import UserError
from relay.environments import login_node
from relay.planning import checks, settings, shapes, size, skips
from relay.planning.cautions import cautions
from relay.planning.config import Config
from relay.planning.plan import SPEEDS, Plan, PlannedSetting, Skipped
from relay.planning.settings import Here, StrategyFile
from relay.process.cpus import granted
from relay.spec import identity, requirements
from relay.spec.run import Gate, Preflight, Reference, Run, Setting
from relay.spec.setting import Device, Feeding
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
    strategies = {name: StrategyFile.of(files[name]) for name in names}
    settings.check_options(config, {name: strategy.requirements for name, strategy in strategies.items()})
    size.check_runs(config)
    here = _here(config.device, gpus, cpus or len(granted()), site)
    planner = _Planner(Plan(config, root, site, names, speeds), strategies, here)
    planner.add_settings()
    planner.add_runs()
    size.check_jobs(planner.plan)
    return planner.plan


def _here(device: Literal["auto", "cpu", "cuda"], gpus: Callable[[], int] | int, cpus: int, site: Site | None) -> Here:
    """Where the runs go. `auto` is settled here, once: a job must not find another answer on its node."""
    if site is not None:
        chosen: Device = "cuda" if any(p.device == "cuda" for p in site.partitions) else "cpu"
        return Here(device=chosen if device == "auto" else device, gpus=None, cpus=None, site=site)
    if device == "cpu":
        return Here(device=device, gpus=None, cpus=cpus)
    found = gpus if isinstance(gpus, int) else gpus()
    if device == "cuda":  # believed where none is found: `here.check` asks nvidia-smi as well
        return Here(device=device, gpus=found or None, cpus=cpus)
    return Here(device="cuda" if found else "cpu", gpus=found, cpus=cpus)


class _Planner:
    """Goes through the combinations once, and fills the plan."""

    def __init__(self, plan: Plan, strategies: Mapping[str, StrategyFile], here: Here) -> None:
        self.plan, self.config, self.root = plan, plan.config, plan.root
        self.strategies, self.here = strategies, here
        self.task, self.dataset = settings.task_and_dataset(self.config)
        self.task_source = identity.source_digest(identity.task_sources(self.root, self.task.network))
        kind = f"datasets.kinds.{self.dataset.kind}"  # loaded by its name, and so imported by none
        self.gate_source, self.reference_source = (
            identity.source_digest(identity.module_sources(self.root, *modules))
            for modules in (("equivalence.gate", "strategies.base", kind), ("equivalence.reference", kind))
        )
        self.strategy_source = {
            name: identity.source_digest(identity.strategy_sources(strategy.file))
            for name, strategy in strategies.items()
        }
        self.locks: dict[str, str | None] = {}
        self.settings: dict[str, PlannedSetting] = {}
        self.skipped: dict[str, Skipped] = {}
        self.cautions: dict[str, list[str]] = {}

    def lock(self, stack: str) -> str | None:
        """The digest of the versions that a stack's lock pins, or None where it has no lock."""
        if stack not in self.locks:
            path = self.root / "envs" / f"{stack}.txt"
            self.locks[stack] = identity.fingerprint(identity.lock_lines(path)) if path.exists() else None
        return self.locks[stack]

    def identity(self, setting: Setting, *, sources: Mapping[str, str] = MappingProxyType({}), **more: Any) -> str:
        """The fingerprint of a setting with the task's source, its stack's lock, and further sources."""
        known = {"task": self.task_source, "lock": self.lock(setting.strategy.stack)}
        return identity.identity(setting, sources=known | dict(sources), **more)

    def add_settings(self) -> None:
        """Every combination of the config becomes a setting with its gate, or is skipped."""
        for asked in settings.expand(self.config.comparisons):
            strategy = self.strategies[asked.strategy]
            setting = settings.resolve(
                asked, config=self.config, strategy=strategy, task=self.task, dataset=self.dataset, here=self.here
            )
            reasons = skips.problems(asked, setting, config=self.config, strategy=strategy, here=self.here)
            if self.here.site and not reasons:
                reasons += self._site_problems(setting, self.here.site)
            stack = setting.strategy.stack
            if self.lock(stack) is None:
                reasons.append(f"stack {stack} has no lock envs/{stack}.txt")
            if not reasons:
                self._add(self._placed(setting), asked.comparison)
            else:
                self.skipped.setdefault(self.identity(setting, reasons=reasons), Skipped(setting, tuple(reasons)))
        self.plan.settings, self.plan.skipped = list(self.settings.values()), list(self.skipped.values())
        for caution, named in self.cautions.items():
            others = f"; so do {len(named) - 1} more settings" if len(named) > 1 else ""
            self.plan.warnings.append(f"{named[0]} {caution}{others}")

    def _site_problems(self, setting: Setting, site: Site) -> Iterator[str]:
        """Why the cluster cannot take the setting's jobs."""
        partition, reason = shapes.partition_for(setting.shape, site, self.config)
        if partition is None:
            yield reason
        try:
            login_node.asked(site, setting.strategy.stack, self.root, device=setting.shape.device)
        except UserError as error:
            yield str(error)

    def _add(self, setting: Setting, index: int) -> None:
        comparison = self.config.comparisons[index]
        name = f"{setting.strategy.name}-{self.identity(setting)}"
        repeats, segment = comparison.repeats or self.config.repeats, comparison.segment or self.config.segment
        known = self.settings.get(name)
        if known is None:
            planned = self.settings[name] = PlannedSetting(name, setting, index, segment, repeats)
            for caution in cautions(planned, self.config, self.here):
                self.cautions.setdefault(caution, []).append(f"{name} (comparisons[{index}])")
            self._add_checks(planned)
            return
        repeats = max(known.repeats, repeats)
        self.settings[name] = replace(known, repeats=repeats)
        place = "twice in" if known.comparison == index else f"in comparisons[{known.comparison}] and"
        other = "" if known.segment == segment else ", with the segment of the former"
        self.plan.warnings.append(f"{name} is {place} comparisons[{index}]: runs once, {repeats} repeats{other}")

    def _placed(self, setting: Setting) -> Setting:
        """The setting with what the site says of its nodes: the kind of GPU, and the software."""
        site = self.here.site
        if site is None:
            return setting
        partition, _ = shapes.partition_for(setting.shape, site, self.config)
        asked = login_node.asked(site, setting.strategy.stack, self.root)
        software = {name: asked[name] for name in ("mode", "build", "packages", "conda", "image", "modules")}
        place = replace(
            setting.place,
            gpu_name=partition.gpu_name if partition else None,
            software=f"{asked['mode']}-{identity.fingerprint(software)}",
        )
        return replace(setting, place=place)

    def _add_checks(self, planned: PlannedSetting) -> None:
        """The gate that a setting goes through, the gate's reference, and the preflight of its shape."""
        plan = self.plan
        gate = plan.gate_of[planned.id] = self._gate(planned.setting)
        preflight = plan.preflight_of[planned.id] = self._preflight(planned.setting)
        # A gate's own shape differs in what does not bear on it: CPUs, threads and the loader.
        self._lead(gate, preflight)
        # A fault of a large shape, or a need of one strategy, keeps no reference from its training.
        self._lead(plan.reference_of[gate], preflight)

    def _lead(self, specification: str, preflight: str) -> None:
        """Let a gate or a reference depend on this preflight, unless it has one that asks less of the nodes."""
        candidates = [self.plan.preflight_of.get(specification, preflight), preflight]
        self.plan.preflight_of[specification] = min(candidates, key=lambda name: _demands(self.plan.preflights[name]))

    def _gate(self, setting: Setting) -> str:
        """The id of the gate that the setting goes through; it and its reference are entered into the plan."""
        gated, seed = checks.gated(setting, self.config.gate.steps), self.config.gate.seed
        sources = {"strategy": self.strategy_source[setting.strategy.name], "gate": self.gate_source}
        name = f"{setting.strategy.name}-{self.identity(gated, sources=sources, seed=seed)}"
        if name not in self.plan.gates:
            self.plan.gates[name] = checks.named(Gate, gated, id=name, seed=seed)
            self.plan.reference_of[name] = self._reference(checks.referred(gated), seed)
        return name

    def _reference(self, referred: Setting, seed: int) -> str:
        """The id of the single process that a gate compares with, on the same kind of device."""
        digest = self.identity(referred, sources={"reference": self.reference_source}, seed=seed)
        name = f"{referred.task.name}-{digest}"
        self.plan.references.setdefault(name, checks.named(Reference, referred, id=name, seed=seed))
        return name

    def _preflight(self, setting: Setting) -> str:
        """The id of the preflight of the setting's shape and stack; it is entered into the plan."""
        shape = setting.shape
        digest = identity.fingerprint(checks.asked_of_nodes(setting))
        name = f"{shape.device}-{shape.nodes}x{shape.processes_per_node}-{shape.launcher}-{digest}"
        known = self.plan.preflights.get(name)
        # The most data workers show whether they share a core.
        if known is None or setting.feeding.data_workers > known.feeding.data_workers:
            self.plan.preflights[name] = Preflight(
                id=name,
                shape=shape,
                of_stack=setting.strategy.stack,
                place=setting.place,
                compile=setting.computation.compile,
                feeding=setting.feeding,
                node_needs=setting.strategy.node_needs,
            )
        return name

    def add_runs(self) -> None:
        """The repeats of all settings, in their order: random within each repeat."""
        order, seed = random.Random(self.config.seed), self.config.seed
        for repeat in range(max((planned.repeats for planned in self.plan.settings), default=0)):
            repeated = [planned for planned in self.plan.settings if repeat < planned.repeats]
            order.shuffle(repeated)
            for planned in repeated:
                digest = self.identity(planned.setting, seed=seed + repeat, repeat=repeat)
                own = {"id": f"{planned.setting.strategy.name}-{digest}", "setting_id": planned.id}
                run = checks.named(Run, planned.setting, **own, seed=seed + repeat, repeat=repeat)
                self.plan.runs.append(run)


def _demands(preflight: Preflight) -> tuple[int, bool, int]:
    """How much a preflight asks of the nodes: needs of its strategy, those of its loader, the number of processes."""
    return len(preflight.node_needs), preflight.feeding.loader != Feeding.loader, preflight.shape.world_size
