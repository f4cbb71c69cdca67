"""From the combinations of a config's axes to settings that can run, settings that are skipped, and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relay.base.errors import UserError
from relay.card.looks import Looks
from relay.config.commands import Command
from relay.config.expansion import Combination, expand, options_key
from relay.config.strategies import StrategyFile
from relay.environments import login_node, software
from relay.environments.locks import lock_of
from relay.planning import cautions, rounds, scripts, settings, skips
from relay.planning.plan import Plan, PlannedSetting, Skipped
from relay.planning.settings import Here
from relay.slurm import shapes
from relay.spec import identity
from relay.spec.looked import Looked
from relay.spec.run import Run, Setting
from relay.spec.site import Site
from relay.spec.spot_checks import SpotChecks


class Combinations:
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
        self.looked = {options: self._looked(looks, seen_task) for options, seen_task in seen.items()}
        self.identities = Identities(self.root, None if commands else looks.task, strategies)
        self.settings: dict[str, PlannedSetting] = {}
        self.skipped: dict[str, Skipped] = {}
        self.cautions: dict[str, list[str]] = {}

    def _looked(self, looks: Looks, looked: Looked) -> Looked:
        """A task that was looked at; the config's learning rate replaces its own, if there is one."""
        self.warnings += [each for each in looked.warnings if each not in self.warnings]
        rate = self.config.learning_rate or looked.task.learning_rate
        # The file is not that of the look: the folder may be another one.
        return replace(looked, task=replace(looked.task, file=looks.task[1], learning_rate=rate))

    def added(self) -> Plan:
        """The plan with every combination of the config: as a setting, or as skipped with reasons."""
        for combination in expand(self.config):
            if command := self.commands.get(combination.strategy):
                setting, reasons = self._of_command(combination, command)
            else:
                setting, reasons = self._of_strategy(combination)
            if self.identities.lock(setting.strategy.stack) is None:
                reasons.append(f"stack {setting.strategy.stack} has no lock envs/{setting.strategy.stack}.txt")
            if not reasons:
                self._add(self._placed(setting), combination.comparison)
            else:
                self.skipped.setdefault(self.identities.of(setting, reasons=reasons), Skipped(setting, tuple(reasons)))
        for caution, named in self.cautions.items():
            others = f"; so do {len(named) - 1} more settings" if len(named) > 1 else ""
            self.warnings.append(f"{named[0]} {caution}{others}")
        settings_, skipped = [*self.settings.values()], [*self.skipped.values()]
        return replace(self.plan, settings=settings_, skipped=skipped, warnings=self.warnings)

    def _of_command(self, combination: Combination, command: Command) -> tuple[Setting, list[str]]:
        """The setting of a combination that names a command, and why it cannot run."""
        stack = self.plan.stacks.name(self.config.comparisons[combination.comparison].stack)
        setting, reasons = scripts.planned(combination, command, config=self.config, stack=stack, here=self.here)
        if self.here.site and not reasons:
            reasons += self._site_problems(setting, self.here.site, None)
        return setting, reasons

    def _of_strategy(self, combination: Combination) -> tuple[Setting, list[str]]:
        """The setting of a combination that names a strategy, and why it cannot run."""
        strategy = self.strategies[combination.strategy]
        setting = settings.resolve(
            combination,
            config=self.config,
            strategy=strategy,
            stack=self.plan.stacks.name(strategy.requirements.stack),
            looked=self.looked[options_key(combination.task_options)],
            here=self.here,
        )
        reasons = skips.problems(combination, setting, config=self.config, strategy=strategy, here=self.here)
        site, stack, needs = self.here.site, setting.strategy.stack, strategy.requirements
        lock = lock_of(self.root, stack)
        torch = software.torch_version(site, stack, lock, self.arithmetic.torch)
        if site and not reasons:
            reasons += self._site_problems(setting, site, torch)
        reasons += software.problems(needs, combination.strategy, torch, site)
        reasons += software.missing_packages(needs, combination.strategy, site, stack, lock)
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
            yield from software.unfit(site, partition, torch, setting.computation.precision)
        try:
            login_node.environment_of(site, setting.strategy.stack, self.root, device=setting.shape.device)
        except UserError as error:
            yield str(error)

    def _add(self, setting: Setting, index: int) -> None:
        comparison = self.config.comparisons[index]
        name = f"{setting.strategy.name}-{self.identities.of(setting)}"
        # A script's jobs end by themselves.
        segment = None if comparison.command else comparison.segment or self.config.segment
        repeats = comparison.repeats or self.config.repeats
        earlier = self.settings.get(name)
        if earlier is None:
            planned = self.settings[name] = PlannedSetting(name, setting, index, segment, repeats)
            for caution in cautions.of_setting(planned, self.plan, self.here):
                self.cautions.setdefault(caution, []).append(f"{name} (comparisons[{index}])")
            return
        repeats = max(earlier.repeats, repeats)
        self.settings[name] = replace(earlier, repeats=repeats)
        place = "twice in" if earlier.comparison == index else f"in comparisons[{earlier.comparison}] and"
        other = "" if earlier.segment == segment else ", with the segment of the former"
        self.warnings.append(f"{name} is {place} comparisons[{index}]: runs once, {repeats} repeats{other}")

    def _placed(self, setting: Setting) -> Setting:
        """The setting with the site's kind of GPU and software, and with what changes the arithmetic."""
        site, variables = self.here.site, self.arithmetic.variables
        if site is None:
            place = replace(setting.place, variables=variables, torch_version=self.arithmetic.torch)
            return replace(setting, place=place)
        partition, _ = shapes.partition_for(setting.shape, site, self.config)
        environment = login_node.environment_of(site, setting.strategy.stack, self.root)
        software = {name: environment[name] for name in ("mode", "build", "packages", "conda", "image", "modules")}
        software |= {"stack_modules": environment["stack_modules"]} if environment["stack_modules"] else {}
        place = replace(
            setting.place,
            gpu_name=partition.gpu_name if partition else None,
            software=f"{environment['mode']}-{identity.fingerprint(software)}",
            torch_version=self.arithmetic.torch if environment["mode"] == "current" else None,
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
            runs.append(Run.of(planned.setting, **own, seed=seed + repeat, repeat=repeat))
        repeated = [replace(each, repeats=repeats[each.id]) for each in planned_settings]
        return replace(plan, runs=runs, settings=repeated, anchors=anchors)


class Identities:
    """The fingerprints of one plan's settings. Raises UserError for a source that cannot be read.

    `task` is the task's name and file; None where commands are measured, which have none.
    """

    def __init__(self, root: Path, task: tuple[str, str] | None, strategies: Mapping[str, StrategyFile]) -> None:
        self.root = root
        self.task_source = identity.source_digest(identity.task_sources(root, *task)) if task else None
        self.gate_source, self.reference_source = (
            identity.source_digest(identity.module_sources(root, *modules))
            for modules in (("equivalence.gate", "strategies.base"), ("equivalence.reference",))
        )
        self.strategy_source = {
            name: identity.source_digest(identity.strategy_sources(strategy.file))
            for name, strategy in strategies.items()
        }
        self.locks: dict[str, str | None] = {}

    def lock(self, stack: str) -> str | None:
        """The digest of the versions that a stack's lock pins, or None where it has no lock."""
        if stack not in self.locks:
            path = lock_of(self.root, stack)
            self.locks[stack] = identity.fingerprint(identity.lock_lines(path)) if path.exists() else None
        return self.locks[stack]

    def of(self, setting: Setting, *, sources: Mapping[str, str] = MappingProxyType({}), **more: Any) -> str:
        """The fingerprint of a setting, with the digests of the task's source, or the script's, the stack's lock and
        `sources`.
        """
        digests = {"lock": self.lock(setting.strategy.stack)}
        script = setting.strategy.script
        digests |= {"script": script.source} if script else {"task": self.task_source}
        return identity.identity(setting, sources=digests | dict(sources), **more)
