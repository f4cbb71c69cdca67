"""From the config to the plan: `make_plan` is the whole story; below it, how combinations of axes become settings."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.card.looks import Looks
from relay.config import shrink
from relay.config.commands import commands_of
from relay.config.comparisons import Combination, check_runs, expand, options_key
from relay.config.config import Config
from relay.config.strategies import strategies_of
from relay.environments import login_node, software, stacks
from relay.environments.locks import lock_of
from relay.planning import cautions, costs, requests, rounds, scripts, segments, settings, skips
from relay.planning.inputs import Here, Identities, Inputs
from relay.planning.plan import RESULTS, Plan, PlannedSetting, Skipped
from relay.planning.proofs import with_proofs
from relay.slurm import shapes
from relay.slurm.requested import Requests
from relay.spec import identity
from relay.spec.labels import counted
from relay.spec.recipe import SpotChecks
from relay.spec.run import Setting
from relay.spec.site import Site
from relay.spec.tasks import Looked

# What making a plan may do. "nothing": it is made from the files that are there. "read": pip is asked for stacks whose
# lock is to be recorded, and earlier runs for what jobs need, which settings are too slow, and what the budget leaves;
# no task's file is run, and no function of another's strategy. "look": also those run, to look at a task whose card is
# not known. "prepare": also the task's data is prepared for that.
May = Literal["nothing", "read", "look", "prepare"]


def make_plan(config: Config, here: Here, *, root: Path = ROOT, results: Path = RESULTS, may: May = "nothing") -> Plan:
    """The plan of a config, in three phases: as declared, with what was seen of the task, and with what was measured.

    `root` is the project's folder, with the locks and the sources of the tasks. Where only a node has what the task
    needs, the plan has nothing but the jobs that look (`Plan.looks`).
    Raises UserError for an unknown strategy or option, and for a strategy, source or lock that cannot be read; NotKnown
    where the task's data have to be prepared first, or it has to be looked at.
    """
    # Read and validated: what the config and the site say alone
    reading, for_jobs = may == "read", may != "nothing"
    commands, strategies = commands_of(config), strategies_of(config, reading=reading)
    check_runs(config)
    needed = {strategy.requirements.stack for strategy in strategies.values()}
    needed |= {comparison.stack for comparison in config.comparisons if comparison.command}
    plan = Plan(
        config,
        root,
        here.site,
        [*dict.fromkeys(each.strategy for each in config.comparisons)],
        results=results,
        held=here.held,
        stacks=stacks.find(config, here.site, root, needed, record=for_jobs),
        requests=Requests.read(results),
        measured=segments.read_speeds(results),
    )
    # The task, as it was looked at
    looks = Looks(
        config=config,
        root=root,
        results=results,
        arithmetic=here.arithmetic,
        stack=plan.stacks.plain,
        site=here.site,
        device=here.device,
        look=for_jobs,
        prepare=may == "prepare",
        reading=reading,
    )
    seen, by_job = ({}, []) if commands else looks.by_options()
    if by_job:
        why = dict.fromkeys(filter(None, map(str, by_job)))
        return replace(plan, looks={each.look.id: each.look for each in by_job}, warnings=[*why])
    inputs = Inputs(
        here=here,
        strategies=strategies,
        commands=commands,
        tasks={options: _as_configured(looked, config, looks) for options, looked in seen.items()},
        identities=Identities(root, None if commands else looks.task, strategies),
    )
    # Settings, what proves them, and their runs
    plan = _with_settings(plan, inputs)
    plan = with_proofs(plan, inputs)
    plan = rounds.with_rounds(plan, inputs.identities, today=for_jobs)
    # What jobs ask for by measurement, what goes on, and what the budget leaves
    if for_jobs:
        plan = replace(plan, requests=replace(plan.requests, measured=requests.measured(plan)))
        plan = costs.kept_to(rounds.dropped(plan))
    of_plan = [*([shrink.WARNING] if config.shrink else []), *cautions.of_plan(plan)]
    plan = replace(plan, warnings=[*plan.warnings, *of_plan])
    costs.check_jobs(plan)
    costs.check_currency(plan)
    return plan


def _as_configured(looked: Looked, config: Config, looks: Looks) -> Looked:
    """A task that was looked at; the config's learning rate replaces its own, if there is one."""
    rate = config.learning_rate or looked.task.learning_rate
    # The file is not that of the look: the folder may be another one.
    return replace(looked, task=replace(looked.task, file=looks.task[1], learning_rate=rate))


def _with_settings(plan: Plan, inputs: Inputs) -> Plan:
    """The plan with every combination of the config: as a setting, or as skipped with reasons."""
    planned: dict[str, PlannedSetting] = {}
    skipped: dict[str, Skipped] = {}
    named_by_caution: dict[str, list[str]] = {}
    variables = inputs.here.arithmetic.variables
    warnings = [f"set in the environment, and so a part of every run: {variables}"] if variables else []
    warnings += dict.fromkeys(warning for looked in inputs.tasks.values() for warning in looked.warnings)
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
        others = f"; the same holds for {counted(len(named) - 1, 'more setting')}" if len(named) > 1 else ""
        warnings.append(f"{named[0]} {caution}{others}")
    return replace(plan, settings=[*planned.values()], skipped=[*skipped.values()], warnings=warnings)


def _of_command(combination: Combination, plan: Plan, inputs: Inputs) -> tuple[Setting, list[str]]:
    """The setting of a combination that names a command, and why it cannot run."""
    command, here = inputs.commands[combination.strategy], inputs.here
    stack = plan.stacks.name(plan.config.comparisons[combination.comparison].stack)
    setting, reasons = scripts.setting_of(combination, command, config=plan.config, stack=stack, here=here)
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
    torch = software.torch_version(here.site, stack, lock, inputs.here.arithmetic.torch)
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
    site, variables, torch = inputs.here.site, inputs.here.arithmetic.variables, inputs.here.arithmetic.torch
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
    repeats = counted(planned.repeats, "repeat")
    return f"{planned.id} is {place} comparisons[{again.comparison}]: runs once, {repeats}{other}"
