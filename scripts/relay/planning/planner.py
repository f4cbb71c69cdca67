"""From the config to the plan: the runs and their order, each setting's gate, and which settings are skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from relay.base.errors import UserError
from relay.config import shrink
from relay.config.commands import Command
from relay.config.config import Config
from relay.environments import login_node
from relay.environments.locks import lock_of
from relay.planning import (
    budget,
    cautions,
    checks,
    right_size,
    rounds,
    scripts,
    segments,
    settings,
    shapes,
    skips,
    software,
    stacks,
    strategy_files,
)
from relay.planning.cards import Looks, seen_by_options
from relay.planning.gpus import ALONE, Sharing, count_gpus
from relay.planning.plan import SPEEDS, Plan, PlannedSetting, Skipped
from relay.planning.proofs import proven
from relay.planning.requests import Requests
from relay.planning.settings import Asked, Here
from relay.planning.strategy_files import Identities, StrategyFile
from relay.process.cpus import granted
from relay.slurm.held import Held
from relay.spec import identity, requirements
from relay.spec.arithmetic import Arithmetic
from relay.spec.looked import Looked
from relay.spec.run import Run, Setting
from relay.spec.setting import Device
from relay.spec.site import Site
from relay.spec.spot_checks import SpotChecks

ROOT = Path(__file__).resolve().parents[3]


def plan(
    config: Config,
    *,
    root: Path = ROOT,
    gpus: Callable[[], int] | int = count_gpus,
    cpus: int | None = None,
    sharing: Sharing = ALONE,
    held: Held | None = None,
    speeds: Path = SPEEDS,
    site: Site | None = None,
    arithmetic: Arithmetic | None = None,
    record: bool = False,
    look: bool = False,
    prepare: bool = False,
    reading: bool = False,
) -> Plan:
    """The plan of a config.

    `root` is the project's folder, with the locks and the sources of the tasks. `gpus` and `cpus` are the numbers of
    this machine; by default they are counted. `sharing`: how many ranks may share a GPU. `speeds` is the file with the
    measured seconds per step. `site` is the cluster that the runs go to; None means this machine, or the allocation
    that the driver runs in (`held`): no more is planned with than that has. `arithmetic` is the driver's; None means
    this process's.
    `record` has pip asked for stacks whose lock is to be recorded, and earlier runs for what jobs need, which settings
    are too slow, and what the budget leaves. `look` has the task looked at where its card is not known, and `prepare`
    its data prepared before that. Where only a node has what the task needs, the plan has nothing but the jobs that
    look (`Plan.looks`). With `reading`, no task's file is run, and no function of a strategy of another's.
    Raises UserError for an unknown strategy or option, and for a strategy, source or lock that cannot be read; NotKnown
    where the task's data have to be prepared first, or it has to be looked at.
    """
    files = requirements.find([Path(folder) for folder in config.strategy_folders])
    commands = scripts.check(config)
    strategy_files.check_strategies(config, files)
    names = list(dict.fromkeys(c.strategy for c in config.comparisons))
    strategies = {name: StrategyFile.of(files[name], reading=reading) for name in names if name not in commands}
    strategy_files.check_options(config, {name: strategy.requirements for name, strategy in strategies.items()})
    budget.check_runs(config)
    segments.read_speeds(speeds)  # a damaged file is told here, and not by the rule that is first to need it
    cpus, gpus = (cpus or len(granted()), gpus) if held is None else held.bounded(len(granted()), gpus)
    here = replace(_here(config.device, gpus, cpus, site), sharing=sharing, held=held)
    needed = {strategy.requirements.stack for strategy in strategies.values()}
    needed |= {comparison.stack for comparison in config.comparisons if comparison.command}
    found = stacks.find(config, site, root, needed, record=record)
    looks = Looks(
        config=config,
        root=root,
        results=speeds.parent,
        arithmetic=arithmetic or Arithmetic.here(),
        stack=found.plain,
        site=site,
        device=here.device,
        look=look or prepare,
        prepare=prepare,
        reading=reading,
    )
    made = Plan(config, root, site, names, speeds, held, found)
    seen, by_job = ({}, []) if commands else seen_by_options(looks)
    if by_job:
        why = dict.fromkeys(filter(None, map(str, by_job)))
        return replace(made, looks={each.look.id: each.look for each in by_job}, warnings=[*why])
    combined = _Combinations(made, strategies, commands, here, looks, seen)
    made = proven(combined.added(), strategies, combined.identities, combined.looked, here.cpus)
    anchors = rounds.read(speeds.parent) if config.anchor else {}
    made = combined.with_runs(made, anchors)
    if record:
        more, told = rounds.further(made)
        made = combined.with_runs(replace(made, warnings=[*made.warnings, *told]), more) if told else made
    made = replace(made, requests=Requests.read(speeds.parent))
    if record:
        made = replace(made, requests=replace(made.requests, measured=right_size.measure(made)))
        made = budget.kept_to(rounds.dropped(made))
    whole = [*([shrink.WARNING] if config.shrink else []), *cautions.of_plan(made)]
    made = replace(made, warnings=[*made.warnings, *whole])
    budget.check_jobs(made)
    budget.check_currency(made)
    return made


def _here(device: Literal["auto", "cpu", "cuda"], gpus: Callable[[], int] | int, cpus: int, site: Site | None) -> Here:
    """Where the runs go. Device `auto` is decided here, unproven a job on another machine might decide otherwise."""
    if site is not None:
        chosen: Device = "cuda" if any(p.device == "cuda" for p in site.partitions) else "cpu"
        return Here(device=chosen if device == "auto" else device, gpus=None, cpus=None, site=site)
    if device == "cpu":
        return Here(device=device, gpus=None, cpus=cpus)
    count = gpus if isinstance(gpus, int) else gpus()
    if device == "cuda":  # accepted without a GPU: `here.check` tells the driver why there is none
        return Here(device=device, gpus=count or None, cpus=cpus)
    return Here(device="cuda" if count else "cpu", gpus=count, cpus=cpus)


class _Combinations:
    """The settings and the runs of all combinations of the config."""

    def __init__(
        self,
        plan: Plan,
        strategies: Mapping[str, StrategyFile],
        commands: Mapping[str, Command],
        here: Here,
        looks: Looks,
        seen: Mapping[str, Looked],
    ) -> None:
        self.plan, self.config, self.root = plan, plan.config, plan.root
        self.strategies, self.commands, self.here, self.arithmetic = strategies, commands, here, looks.arithmetic
        variables = self.arithmetic.variables
        self.warnings = [f"set in the environment, and so a part of every run: {variables}"] if variables else []
        self.looked = {options: self._looked(looks, found) for options, found in seen.items()}
        self.identities = Identities(self.root, None if commands else looks.task, strategies)
        self.settings: dict[str, PlannedSetting] = {}
        self.skipped: dict[str, Skipped] = {}
        self.cautions: dict[str, list[str]] = {}

    def _looked(self, looks: Looks, found: Looked) -> Looked:
        """A task that was looked at; the config's learning rate replaces its own, if there is one."""
        self.warnings += [each for each in found.warnings if each not in self.warnings]
        rate = self.config.learning_rate or found.task.learning_rate
        # The file is not that of the look: the folder may be another one.
        return replace(found, task=replace(found.task, file=looks.task[1], learning_rate=rate))

    def added(self) -> Plan:
        """The plan with every combination of the config: as a setting, or as skipped with reasons."""
        for asked in settings.expand(self.config):
            if command := self.commands.get(asked.strategy):
                setting, reasons = self._of_command(asked, command)
            else:
                setting, reasons = self._of_strategy(asked)
            if self.identities.lock(setting.strategy.stack) is None:
                reasons.append(f"stack {setting.strategy.stack} has no lock envs/{setting.strategy.stack}.txt")
            if not reasons:
                self._add(self._placed(setting), asked.comparison)
            else:
                self.skipped.setdefault(self.identities.of(setting, reasons=reasons), Skipped(setting, tuple(reasons)))
        for caution, named in self.cautions.items():
            others = f"; so do {len(named) - 1} more settings" if len(named) > 1 else ""
            self.warnings.append(f"{named[0]} {caution}{others}")
        settings_, skipped = [*self.settings.values()], [*self.skipped.values()]
        return replace(self.plan, settings=settings_, skipped=skipped, warnings=self.warnings)

    def _of_command(self, asked: Asked, command: Command) -> tuple[Setting, list[str]]:
        """The setting of a combination that names a command, and why it cannot run."""
        stack = self.plan.stacks.name(self.config.comparisons[asked.comparison].stack)
        setting = scripts.resolve(asked, command, config=self.config, stack=stack, here=self.here)
        reasons = scripts.problems(asked, setting, command, self.here)
        if self.here.site and not reasons:
            reasons += self._site_problems(setting, self.here.site, None)
        return setting, reasons

    def _of_strategy(self, asked: Asked) -> tuple[Setting, list[str]]:
        """The setting of a combination that names a strategy, and why it cannot run."""
        strategy = self.strategies[asked.strategy]
        setting = settings.resolve(
            asked,
            config=self.config,
            strategy=strategy,
            stack=self.plan.stacks.name(strategy.requirements.stack),
            looked=self.looked[settings.shown(asked.task_options)],
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
        if unproven := skips.why_unproven(setting.task):
            if self.config.unproven == "skip":
                reasons.append(f"{unproven}; `unproven: measure` has it measured all the same")
            # Nothing is computed again where one plain process need not train the same.
            setting = replace(setting, spot_checks=SpotChecks(random_steps=0, hops=0, end=False))
        return setting, reasons

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
        name = f"{setting.strategy.name}-{self.identities.of(setting)}"
        # A script's jobs end by themselves.
        segment = None if comparison.command else comparison.segment or self.config.segment
        repeats = comparison.repeats or self.config.repeats
        known = self.settings.get(name)
        if known is None:
            planned = self.settings[name] = PlannedSetting(name, setting, index, segment, repeats)
            wanted = self.here.site and self.here.site.min_minutes
            speed = self.plan.measured.get(planned.id) if wanted else None
            for caution in cautions.of_setting(planned, self.config, self.here, speed):
                self.cautions.setdefault(caution, []).append(f"{name} (comparisons[{index}])")
            return
        repeats = max(known.repeats, repeats)
        self.settings[name] = replace(known, repeats=repeats)
        place = "twice in" if known.comparison == index else f"in comparisons[{known.comparison}] and"
        other = "" if known.segment == segment else ", with the segment of the former"
        self.warnings.append(f"{name} is {place} comparisons[{index}]: runs once, {repeats} repeats{other}")

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

    def with_runs(self, plan: Plan, anchors: Mapping[str, Mapping[str, Any]]) -> Plan:
        """The plan with its runs: the repeats of all settings, in rounds."""
        planned_settings, seed, repeats = [*self.settings.values()], self.config.seed, Counter[str]()
        runs = []
        for planned, repeat in rounds.in_order(planned_settings, anchors, seed):
            repeats[planned.id] += 1
            digest = self.identities.of(planned.setting, seed=seed + repeat, repeat=repeat)
            own = {"id": f"{planned.setting.strategy.name}-{digest}", "setting_id": planned.id}
            runs.append(checks.named(Run, planned.setting, **own, seed=seed + repeat, repeat=repeat))
        repeated = [replace(each, repeats=repeats[each.id]) for each in planned_settings]
        return replace(plan, runs=runs, settings=repeated, anchors=anchors)
