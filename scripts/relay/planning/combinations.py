"""From the combinations of a config's axes to settings that can run, and settings that are skipped.

`Inputs` is all that they are made from, which is found out before the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relay.base.errors import UserError
from relay.card.looks import Looks
from relay.config.commands import Command
from relay.config.config import Config
from relay.config.expansion import Combination, expand, options_key
from relay.config.strategies import StrategyFile
from relay.environments import login_node, software
from relay.environments.locks import lock_of, names_and_versions
from relay.planning import cautions, scripts, settings, skips
from relay.planning.plan import Plan, PlannedSetting, Skipped
from relay.planning.settings import Here
from relay.slurm import shapes
from relay.spec import identity
from relay.spec.arithmetic import Arithmetic
from relay.spec.looked import Looked
from relay.spec.run import Setting
from relay.spec.site import Site
from relay.spec.spot_checks import SpotChecks


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
            self.locks[stack] = identity.fingerprint(names_and_versions(path)) if path.exists() else None
        return self.locks[stack]

    def of(self, setting: Setting, *, sources: Mapping[str, str] = MappingProxyType({}), **more: Any) -> str:
        """The fingerprint of a setting, with the digests of the task's source, or the script's, the stack's lock and
        `sources`.
        """
        digests = {"lock": self.lock(setting.strategy.stack)}
        script = setting.strategy.script
        digests |= {"script": script.source} if script else {"task": self.task_source}
        return identity.identity(setting, sources=digests | dict(sources), **more)

    def of_gate(self, gated: Setting, **more: Any) -> str:
        """The same of a setting as its gate trains it."""
        sources = {"strategy": self.strategy_source[gated.strategy.name], "gate": self.gate_source}
        return self.of(gated, sources=sources, **more)

    def of_reference(self, referred: Setting, **more: Any) -> str:
        """The same of a setting that a reference trains."""
        return self.of(referred, sources={"reference": self.reference_source}, **more)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The strategies and the commands of a config by their names, and its task as it was looked at.

    `tasks` is the task with each combination of its options, by `options_key`; none where commands are measured.
    """

    here: Here
    arithmetic: Arithmetic
    strategies: Mapping[str, StrategyFile]
    commands: Mapping[str, Command]
    tasks: Mapping[str, Looked]
    identities: Identities

    @property
    def learning_rate(self) -> float:
        """The task's, or the config's for it. The task's options do not change it."""
        return next(iter(self.tasks.values())).task.learning_rate


def as_configured(looked: Looked, config: Config, looks: Looks) -> Looked:
    """A task that was looked at; the config's learning rate replaces its own, if there is one."""
    rate = config.learning_rate or looked.task.learning_rate
    # The file is not that of the look: the folder may be another one.
    return replace(looked, task=replace(looked.task, file=looks.task[1], learning_rate=rate))


def with_settings(plan: Plan, inputs: Inputs) -> Plan:
    """The plan with every combination of the config: as a setting, or as skipped with reasons."""
    planned: dict[str, PlannedSetting] = {}
    skipped: dict[str, Skipped] = {}
    named_by_caution: dict[str, list[str]] = {}
    warnings = [*_of_inputs(inputs)]
    for combination in expand(plan.config):
        if combination.strategy in inputs.commands:
            setting, reasons = _of_command(combination, plan, inputs)
        else:
            setting, reasons = _of_strategy(combination, plan, inputs)
        if inputs.identities.lock(setting.strategy.stack) is None:
            reasons.append(f"stack {setting.strategy.stack} has no lock envs/{setting.strategy.stack}.txt")
        if reasons:
            skipped.setdefault(inputs.identities.of(setting, reasons=reasons), Skipped(setting, tuple(reasons)))
            continue
        each = _planned(_placed(setting, plan, inputs), combination.comparison, plan.config, inputs.identities)
        first = planned.get(each.id)
        if first is None:
            planned[each.id] = each
            for caution in cautions.of_setting(each, plan, inputs.here):
                named_by_caution.setdefault(caution, []).append(f"{each.id} (comparisons[{each.comparison}])")
        else:
            planned[each.id] = replace(first, repeats=max(first.repeats, each.repeats))
            warnings.append(_once(planned[each.id], each))
    for caution, named in named_by_caution.items():
        others = f"; so do {len(named) - 1} more settings" if len(named) > 1 else ""
        warnings.append(f"{named[0]} {caution}{others}")
    return replace(plan, settings=[*planned.values()], skipped=[*skipped.values()], warnings=warnings)


def _of_inputs(inputs: Inputs) -> Iterator[str]:
    """Warnings that bear on all settings."""
    if variables := inputs.arithmetic.variables:
        yield f"set in the environment, and so a part of every run: {variables}"
    yield from dict.fromkeys(warning for looked in inputs.tasks.values() for warning in looked.warnings)


def _of_command(combination: Combination, plan: Plan, inputs: Inputs) -> tuple[Setting, list[str]]:
    """The setting of a combination that names a command, and why it cannot run."""
    command, here = inputs.commands[combination.strategy], inputs.here
    stack = plan.stacks.name(plan.config.comparisons[combination.comparison].stack)
    setting, reasons = scripts.planned(combination, command, config=plan.config, stack=stack, here=here)
    if here.site and not reasons:
        reasons += _site_problems(setting, here.site, None, plan)
    return setting, reasons


def _of_strategy(combination: Combination, plan: Plan, inputs: Inputs) -> tuple[Setting, list[str]]:
    """The setting of a combination that names a strategy, and why it cannot run."""
    config, here, strategy = plan.config, inputs.here, inputs.strategies[combination.strategy]
    needs = strategy.requirements
    stack, looked = plan.stacks.name(needs.stack), inputs.tasks[options_key(combination.task_options)]
    setting = settings.resolve(combination, config=config, strategy=strategy, stack=stack, looked=looked, here=here)
    reasons = skips.problems(combination, setting, config=config, strategy=strategy, here=here)
    lock = lock_of(plan.root, stack)
    torch = software.torch_version(here.site, stack, lock, inputs.arithmetic.torch)
    if here.site and not reasons:
        reasons += _site_problems(setting, here.site, torch, plan)
    reasons += software.problems(needs, combination.strategy, torch, here.site)
    reasons += software.missing_packages(needs, combination.strategy, here.site, stack, lock)
    if unproven := skips.why_unproven(setting.task):
        if config.unproven == "skip":
            reasons.append(f"{unproven}; `unproven: measure` has it measured all the same")
        # Nothing is computed again where one plain process need not train the same.
        setting = replace(setting, spot_checks=SpotChecks(random_steps=0, hops=0, end=False))
    return setting, reasons


def _site_problems(setting: Setting, site: Site, torch: str | None, plan: Plan) -> Iterator[str]:
    """Why the cluster cannot take the setting's jobs. `torch` is the version that they will have."""
    partition, reason = shapes.partition_for(setting.shape, site, plan.config)
    if partition is None:
        yield reason
    else:
        yield from software.unfit(site, partition, torch, setting.computation.precision)
    try:
        login_node.environment_of(site, setting.strategy.stack, plan.root, device=setting.shape.device)
    except UserError as error:
        yield str(error)


def _placed(setting: Setting, plan: Plan, inputs: Inputs) -> Setting:
    """The setting with the site's kind of GPU and software, and with what changes the arithmetic."""
    site, variables, torch = inputs.here.site, inputs.arithmetic.variables, inputs.arithmetic.torch
    if site is None:
        return replace(setting, place=replace(setting.place, variables=variables, torch_version=torch))
    partition, _ = shapes.partition_for(setting.shape, site, plan.config)
    environment = login_node.environment_of(site, setting.strategy.stack, plan.root)
    of_jobs = {name: environment[name] for name in ("mode", "build", "packages", "conda", "image", "modules")}
    of_jobs |= {"stack_modules": environment["stack_modules"]} if environment["stack_modules"] else {}
    place = replace(
        setting.place,
        gpu_name=partition.gpu_name if partition else None,
        software=f"{environment['mode']}-{identity.fingerprint(of_jobs)}",
        torch_version=torch if environment["mode"] == "current" else None,
        variables=variables,
    )
    return replace(setting, place=place)


def _planned(setting: Setting, index: int, config: Config, identities: Identities) -> PlannedSetting:
    """The setting as comparison `index` of the config asks for it."""
    comparison, name = config.comparisons[index], f"{setting.strategy.name}-{identities.of(setting)}"
    segment = None if comparison.command else comparison.segment or config.segment  # a script's jobs end by themselves
    return PlannedSetting(name, setting, index, segment, comparison.repeats or config.repeats)


def _once(planned: PlannedSetting, again: PlannedSetting) -> str:
    """What it means that another combination asks for a setting again."""
    place = f"in comparisons[{planned.comparison}] and"
    if planned.comparison == again.comparison:
        place = "twice in"
    other = "" if planned.segment == again.segment else ", with the segment of the former"
    return f"{planned.id} is {place} comparisons[{again.comparison}]: runs once, {planned.repeats} repeats{other}"
