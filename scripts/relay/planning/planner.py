"""From the config to the plan: the steps, each of which gives another plan; and where the runs go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from relay.config import shrink
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
    combined = Combinations(made, strategies, commands, here, looks, seen)
    made = proven(combined.added(), strategies, combined.identities, combined.looked, here.cpus)
    anchors = rounds.read(speeds.parent) if config.anchor else {}
    made = combined.with_runs(made, anchors)
    if record:
        more, told = rounds.with_anchors(made)
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
