"""From the config to the plan: the steps, each of which gives another plan; and where the runs go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from relay.base.entry import ROOT
from relay.config import shrink
from relay.config.commands import Command
from relay.config.config import Config
from relay.planning import (
    budget,
    cautions,
    right_size,
    rounds,
    scripts,
    segments,
    stacks,
    strategy_files,
)
from relay.planning.cards import Looks, seen_by_options
from relay.planning.combinations import Combinations
from relay.planning.gpus import ALONE, Sharing, count_gpus
from relay.planning.plan import SPEEDS, Plan
from relay.planning.proofs import proven
from relay.planning.requests import Requests
from relay.planning.settings import Here
from relay.planning.strategy_files import StrategyFile
from relay.process.cpus import granted
from relay.slurm.held import Held
from relay.spec import requirements
from relay.spec.arithmetic import Arithmetic
from relay.spec.setting import Device
from relay.spec.site import Site


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
    prepare: bool = False,
    reading: bool = False,
) -> Plan:
    """The plan of a config, in three phases: as declared, with what was seen of the task, and with what was measured.

    `root` is the project's folder, with the locks and the sources of the tasks. `gpus` and `cpus` are the numbers of
    this machine; by default they are counted. `sharing`: how many ranks may share a GPU. `speeds` is the file with the
    measured seconds per step. `site` is the cluster that the runs go to; None means this machine, or the allocation
    that the driver runs in (`held`): no more is planned with than that has. `arithmetic` is the driver's; None means
    this process's.
    `record` has pip asked for stacks whose lock is to be recorded, the task looked at where its card is not known, and
    earlier runs asked for what jobs need, which settings are too slow, and what the budget leaves. `prepare` has the
    task's data prepared before a look. Where only a node has what the task needs, the plan has nothing but the jobs
    that look (`Plan.looks`). With `reading`, no task's file is run, and no function of a strategy of another's.
    Raises UserError for an unknown strategy or option, and for a strategy, source or lock that cannot be read; NotKnown
    where the task's data have to be prepared first, or it has to be looked at.
    """
    cpus, gpus = (cpus or len(granted()), gpus) if held is None else held.bounded(len(granted()), gpus)
    empty = Plan(config, root, site, (), speeds, held)
    declared, strategies, commands = _declared(empty, record=record, reading=reading)
    here = replace(_here(config.device, gpus, cpus, site), sharing=sharing, held=held)
    looks = Looks(
        config=config,
        root=root,
        results=declared.results,
        arithmetic=arithmetic or Arithmetic.here(),
        stack=declared.stacks.plain,
        site=site,
        device=here.device,
        look=record or prepare,
        prepare=prepare,
        reading=reading,
    )
    seen, by_job = ({}, []) if commands else seen_by_options(looks)
    if by_job:
        why = dict.fromkeys(filter(None, map(str, by_job)))
        return replace(declared, looks={each.look.id: each.look for each in by_job}, warnings=[*why])
    made = _with_runs(Combinations(declared, strategies, commands, here, looks, seen), record=record)
    made = _measured(made) if record else made
    whole = [*([shrink.WARNING] if config.shrink else []), *cautions.of_plan(made)]
    made = replace(made, warnings=[*made.warnings, *whole])
    budget.check_jobs(made)
    budget.check_currency(made)
    return made


def _declared(
    empty: Plan, *, record: bool, reading: bool
) -> tuple[Plan, Mapping[str, StrategyFile], Mapping[str, Command]]:
    """Phase 1, from the config and the site alone: a plan without runs, the strategies' files, and the commands."""
    config = empty.config
    files = requirements.find([Path(folder) for folder in config.strategy_folders])
    commands = scripts.check(config)
    strategy_files.check_strategies(config, files)
    names = list(dict.fromkeys(c.strategy for c in config.comparisons))
    strategies = {name: StrategyFile.of(files[name], reading=reading) for name in names if name not in commands}
    strategy_files.check_options(config, {name: strategy.requirements for name, strategy in strategies.items()})
    budget.check_runs(config)
    segments.read_speeds(empty.speeds)  # a damaged file is told here, and not by the rule that is first to need it
    needed = {strategy.requirements.stack for strategy in strategies.values()}
    needed |= {comparison.stack for comparison in config.comparisons if comparison.command}
    found = stacks.find(config, empty.site, empty.root, needed, record=record)
    return replace(empty, strategies=names, stacks=found), strategies, commands


def _with_runs(combined: Combinations, *, record: bool) -> Plan:
    """Phase 2, with what was seen of the task: its settings, what proves them, and their runs in rounds."""
    made = proven(combined.added(), combined.strategies, combined.identities, combined.looked, combined.here.cpus)
    made = combined.with_runs(made, rounds.read(made.results) if made.config.anchor else {})
    if record:
        more, told = rounds.with_anchors(made)
        made = combined.with_runs(replace(made, warnings=[*made.warnings, *told]), more) if told else made
    return replace(made, requests=Requests.read(made.results))


def _measured(made: Plan) -> Plan:
    """Phase 3, with what earlier runs have measured: what jobs ask for, what goes on, and what the budget leaves."""
    made = replace(made, requests=replace(made.requests, measured=right_size.measure(made)))
    return budget.kept_to(rounds.dropped(made))


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
