"""From the config to the plan: the runs and their order, each setting's gate, and which settings are skipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from relay.base.errors import UserError
from relay.environments import login_node, overlay
from relay.environments.locks import base, lock_of
from relay.planning import (
    batches,
    budget,
    checks,
    dropping,
    right_size,
    segments,
    settings,
    shapes,
    shrink,
    size,
    skips,
    software,
    stacks,
    table,
    user_limits,
)
from relay.planning.cautions import cautions, of_unused_keys
from relay.planning.config import Config
from relay.planning.gpus import count_gpus
from relay.planning.plan import SPEEDS, Plan, PlannedSetting, Skipped
from relay.planning.right_size import Requests
from relay.planning.settings import Here, StrategyFile
from relay.process.cpus import granted
from relay.spec import identity, requirements
from relay.spec.arithmetic import Arithmetic
from relay.spec.run import Gate, LibTorch, Preflight, Reference, Run, Setting, SpotCheck
from relay.spec.setting import Device, Feeding
from relay.spec.site import Site

ROOT = Path(__file__).resolve().parents[3]


def plan(
    config: Config,
    *,
    root: Path = ROOT,
    gpus: Callable[[], int] | int = count_gpus,
    cpus: int | None = None,
    speeds: Path = SPEEDS,
    site: Site | None = None,
    arithmetic: Arithmetic | None = None,
    record: bool = False,
) -> Plan:
    """The plan of a config.

    `root` is the project's folder, with the locks and the sources of the tasks. `gpus` and `cpus` are the numbers of
    this machine; by default they are counted. `speeds` is the file with the measured seconds per step. `site` is the
    cluster that the runs go to; None means this machine. `arithmetic` is the driver's; None means this process's.
    `record` has pip asked for stacks whose lock is to be recorded, and earlier runs for what jobs need; the driver does
    that.
    Raises UserError for an unknown strategy or option, and for a strategy, source or lock that cannot be read.
    """
    files = requirements.find([Path(folder) for folder in config.strategy_folders])
    settings.check_strategies(config, files)
    names = list(dict.fromkeys(c.strategy for c in config.comparisons))
    strategies = {name: StrategyFile.of(files[name]) for name in names}
    settings.check_options(config, {name: strategy.requirements for name, strategy in strategies.items()})
    size.check_runs(config)
    segments.read_speeds(speeds)  # a damaged file is told here, and not by the rule that is first to need it
    here = _here(config.device, gpus, cpus or len(granted()), site)
    needed = {strategy.requirements.stack for strategy in strategies.values()}
    found = stacks.find(config, site, root, needed, record=record)
    planner = _Planner(
        Plan(config, root, site, names, speeds, found), strategies, here, arithmetic or Arithmetic.here()
    )
    planner.add_settings()
    planner.add_checks()
    planner.add_runs()
    results = speeds.parent
    planner.plan.requests = Requests.read(results)
    if record:
        planner.plan.requests = Requests(right_size.measure(planner.plan), planner.plan.requests.raised)
    dropping.drop(planner.plan, partial(table.setting_names, planner.plan), driver=record)
    budget.keep_to_it(planner.plan, driver=record)
    planner.plan.warnings += [shrink.WARNING] if config.shrink else []
    planner.plan.warnings += of_unused_keys(config)
    planner.plan.warnings += user_limits.warnings(planner.plan)
    size.check_jobs(planner.plan)
    return planner.plan


def _here(device: Literal["auto", "cpu", "cuda"], gpus: Callable[[], int] | int, cpus: int, site: Site | None) -> Here:
    """Where the runs go. Device `auto` is decided here, because a job on another machine might decide otherwise."""
    if site is not None:
        chosen: Device = "cuda" if any(p.device == "cuda" for p in site.partitions) else "cpu"
        return Here(device=chosen if device == "auto" else device, gpus=None, cpus=None, site=site)
    if device == "cpu":
        return Here(device=device, gpus=None, cpus=cpus)
    count = gpus if isinstance(gpus, int) else gpus()
    if device == "cuda":  # accepted without a GPU: `here.check` tells the driver why there is none
        return Here(device=device, gpus=count or None, cpus=cpus)
    return Here(device="cuda" if count else "cpu", gpus=count, cpus=cpus)


class _Planner:
    """Fills the plan in one pass over all combinations of the config."""

    def __init__(self, plan: Plan, strategies: Mapping[str, StrategyFile], here: Here, arithmetic: Arithmetic) -> None:
        self.plan, self.config, self.root = plan, plan.config, plan.root
        self.strategies, self.here, self.arithmetic = strategies, here, arithmetic
        if arithmetic.variables:
            self.plan.warnings.append(f"set in the environment, and so a part of every run: {arithmetic.variables}")
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
            path = lock_of(self.root, stack)
            self.locks[stack] = identity.fingerprint(identity.lock_lines(path)) if path.exists() else None
        return self.locks[stack]

    def identity(self, setting: Setting, *, sources: Mapping[str, str] = MappingProxyType({}), **more: Any) -> str:
        """The fingerprint of a setting, with the digests of the task's source, the stack's lock and `sources`."""
        known = {"task": self.task_source, "lock": self.lock(setting.strategy.stack)}
        return identity.identity(setting, sources=known | dict(sources), **more)

    def add_settings(self) -> None:
        """Add every combination of the config to the plan: as a setting with its gate, or as skipped with reasons."""
        for asked in settings.expand(self.config.comparisons):
            strategy = self.strategies[asked.strategy]
            setting = settings.resolve(
                asked,
                config=self.config,
                strategy=strategy,
                stack=self.plan.stacks.name(strategy.requirements.stack),
                task=self.task,
                dataset=self.dataset,
                here=self.here,
            )
            reasons = skips.problems(asked, setting, config=self.config, strategy=strategy, here=self.here)
            stack = setting.strategy.stack
            torch = software.torch_version(self.here.site, stack, lock_of(self.root, stack), self.arithmetic.torch)
            if self.here.site and not reasons:
                reasons += self._site_problems(setting, self.here.site, torch)
            reasons += software.problems(strategy.requirements, asked.strategy, torch, self.here.site)
            recorded = (self.here.site, stack, lock_of(self.root, stack))
            reasons += software.missing_packages(strategy.requirements, asked.strategy, *recorded)
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

    def _site_problems(self, setting: Setting, site: Site, torch: str | None) -> Iterator[str]:
        """Why the cluster cannot take the setting's jobs. `torch` is the version that they will have."""
        partition, reason = shapes.partition_for(setting.shape, site, self.config)
        if partition is None:
            yield reason
        if partition is not None:
            yield from software.unfit(site, partition, torch)
            yield from skips.of_gpus(setting, partition)
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
            wanted = self.here.site and self.here.site.min_minutes
            speed = self.plan.measured.get(planned.id) if wanted else None
            for caution in cautions(planned, self.config, self.here, speed):
                self.cautions.setdefault(caution, []).append(f"{name} (comparisons[{index}])")
            return
        repeats = max(known.repeats, repeats)
        self.settings[name] = replace(known, repeats=repeats)
        place = "twice in" if known.comparison == index else f"in comparisons[{known.comparison}] and"
        other = "" if known.segment == segment else ", with the segment of the former"
        self.plan.warnings.append(f"{name} is {place} comparisons[{index}]: runs once, {repeats} repeats{other}")

    def _placed(self, setting: Setting) -> Setting:
        """The setting with the site's kind of GPU and software, and with what changes the arithmetic."""
        site, variables = self.here.site, self.arithmetic.variables
        if site is None:
            place = replace(setting.place, variables=variables, torch_version=self.arithmetic.torch)
            return replace(setting, place=place)
        partition, _ = shapes.partition_for(setting.shape, site, self.config)
        asked = login_node.asked(site, setting.strategy.stack, self.root)
        software = {name: asked[name] for name in ("mode", "build", "packages", "conda", "image", "modules")}
        software |= {"stack_modules": asked["stack_modules"]} if asked["stack_modules"] else {}
        place = replace(
            setting.place,
            gpu_name=partition.gpu_name if partition else None,
            software=f"{asked['mode']}-{identity.fingerprint(software)}",
            torch_version=self.arithmetic.torch if asked["mode"] == "current" else None,
            variables=variables,
        )
        return replace(setting, place=place)

    def add_checks(self) -> None:
        """Add each setting's gate, the gates' references, and the preflights of the settings' shapes to the plan."""
        plan = self.plan
        sharing: dict[str, list[PlannedSetting]] = {}
        for planned in plan.settings:
            plan.preflight_of[planned.id] = self._preflight(planned.setting)
            if planned.setting.spot_checks.any:
                again = checks.spot_checked(planned.setting, self.here.cpus)
                plan.spot_checks[planned.id] = checks.named(SpotCheck, again, id=planned.id, seed=self.config.seed)
            shared = self._gated(planned.setting)
            sharing.setdefault(self._gate_identity(shared), []).append(planned)
        self._add_libtorch()
        gates_of: dict[str, list[Gate]] = {}
        for members in sharing.values():
            gate = self._add_gate(members)
            gates_of.setdefault(self._add_reference(gate), []).append(gate)
        for name, gates in gates_of.items():
            plan.references[name] = checks.with_cpus(plan.references[name], gates, self.here.cpus)
            # The least demanding preflight of its gates, so that a failed preflight of a larger shape does not stop it.
            preflights = [plan.preflight_of[gate.id] for gate in gates]
            plan.preflight_of[name] = min(preflights, key=lambda each: _demands(plan.preflights[each]))

    def _add_libtorch(self) -> None:
        """Add, for each task, its first setting: the network is the same, whichever strategy has trained it."""
        plain_first = sorted(
            self.plan.settings, key=lambda planned: base(planned.setting.strategy.stack) != overlay.DRIVERS
        )
        for task in dict.fromkeys(planned.setting.task.name for planned in self.plan.settings):
            first = next(planned for planned in plain_first if planned.setting.task.name == task)
            alone = checks.spot_checked(first.setting, self.here.cpus)
            self.plan.libtorch[first.id] = checks.named(LibTorch, alone, id=first.id, seed=self.config.seed)

    def _gated(self, setting: Setting) -> Setting:
        """The setting as its gate trains it."""
        batch = batches.proof_batch(setting, self.strategies[setting.strategy.name])
        return checks.gated(setting, self.config.gate.steps, batch=batch, task=self.task)

    def _gate_identity(self, gated: Setting, **more: Any) -> str:
        sources = {"strategy": self.strategy_source[gated.strategy.name], "gate": self.gate_source}
        return self.identity(gated, sources=sources, seed=self.config.gate.seed, **more)

    def _add_gate(self, members: Sequence[PlannedSetting]) -> Gate:
        """The gate that these settings share. It gets the shape of the largest one, and waits for its preflight."""
        plan = self.plan
        gated, own = self._gated(members[0].setting), checks.own_batches(each.setting for each in members)
        name = f"{gated.strategy.name}-{self._gate_identity(gated, own_batches=own)}"

        def size(planned: PlannedSetting) -> tuple[int, int, tuple[int, ...]]:
            shape = planned.setting.shape
            demands = _demands(plan.preflights[plan.preflight_of[planned.id]])
            return -shape.cpus_per_task, -shape.threads, demands

        largest = min(members, key=size)
        gate = checks.named(Gate, gated, id=name, seed=self.config.gate.seed, own_batches=own)
        gate = plan.gates[name] = checks.started_as(gate, largest.setting)
        plan.preflight_of[name] = plan.preflight_of[largest.id]
        plan.gate_of |= {planned.id: name for planned in members}
        return gate

    def _add_reference(self, gate: Gate) -> str:
        """The id of a gate's reference, which uses the same kind of device. The reference is added to the plan."""
        referred, seed = checks.referred(gate, self.plan.stacks.plain), self.config.gate.seed
        digest = self.identity(referred, sources={"reference": self.reference_source}, seed=seed)
        name = self.plan.reference_of[gate.id] = f"{referred.task.name}-{digest}"
        self.plan.references.setdefault(name, checks.named(Reference, referred, id=name, seed=seed))
        return name

    def _preflight(self, setting: Setting) -> str:
        """The id of the preflight of the setting's shape and stack. The preflight is added to the plan."""
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
        """Add the repeats of all settings to the plan. Within each repeat, their order is random."""
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
