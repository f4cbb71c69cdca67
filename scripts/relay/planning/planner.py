"""From the config to the plan: the steps, each of which gives another plan; and what it needs that is not here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.card.looks import Looks
from relay.config import expansion, shrink
from relay.config.commands import commands_of
from relay.config.config import Config
from relay.config.strategies import strategies_of
from relay.datasets.files import check_root, folder_of
from relay.datasets.manifest import MANIFEST
from relay.datasets.public import SOURCES
from relay.environments import login_node, stacks
from relay.launch.gpus import ALONE, Sharing, count_gpus, usable
from relay.planning import cautions, costs, requests, rounds, segments
from relay.planning.combinations import Identities, Inputs, as_configured, with_settings
from relay.planning.plan import SPEEDS, Plan
from relay.planning.proofs import with_proofs
from relay.planning.requested import Requests
from relay.planning.settings import Here
from relay.process.cpus import granted
from relay.slurm import shapes
from relay.slurm.held import Held
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
    # Read and validated: what the config and the site say alone
    commands, strategies = commands_of(config), strategies_of(config, reading=reading)
    expansion.check_runs(config)
    segments.read_speeds(speeds)  # a damaged file is told here, and not by the rule that is first to need it
    names = [*dict.fromkeys(each.strategy for each in config.comparisons)]
    needed = {strategy.requirements.stack for strategy in strategies.values()}
    needed |= {comparison.stack for comparison in config.comparisons if comparison.command}
    software = stacks.find(config, site, root, needed, record=record)
    plan = Plan(config, root, site, names, speeds, held, software)
    # The task, as it was looked at
    here = replace(_here(config.device, gpus, cpus, site), sharing=sharing, held=held)
    arithmetic = arithmetic or Arithmetic.here()
    looks = Looks(
        config=config,
        root=root,
        results=plan.results,
        arithmetic=arithmetic,
        stack=software.plain,
        site=site,
        device=here.device,
        look=record or prepare,
        prepare=prepare,
        reading=reading,
    )
    seen, by_job = ({}, []) if commands else looks.by_options()
    if by_job:
        why = dict.fromkeys(filter(None, map(str, by_job)))
        return replace(plan, looks={each.look.id: each.look for each in by_job}, warnings=[*why])
    inputs = Inputs(
        here=here,
        arithmetic=arithmetic,
        strategies=strategies,
        commands=commands,
        tasks={options: as_configured(looked, config, looks) for options, looked in seen.items()},
        identities=Identities(root, None if commands else looks.task, strategies),
    )
    # Settings, what proves them, and their runs
    plan = with_settings(plan, inputs)
    plan = with_proofs(plan, inputs)
    plan = rounds.with_rounds(plan, inputs.identities, today=record)
    # What jobs ask for by measurement, what goes on, and what the budget leaves
    plan = replace(plan, requests=Requests.read(plan.results))
    if record:
        plan = replace(plan, requests=replace(plan.requests, measured=requests.measured(plan)))
        plan = costs.kept_to(rounds.dropped(plan))
    of_plan = [*([shrink.WARNING] if config.shrink else []), *cautions.of_plan(plan)]
    plan = replace(plan, warnings=[*plan.warnings, *of_plan])
    costs.check_jobs(plan)
    costs.check_currency(plan)
    return plan


def _here(device: Literal["auto", "cpu", "cuda"], gpus: Callable[[], int] | int, cpus: int, site: Site | None) -> Here:
    """Where the runs go. Device `auto` is decided here, because a job on another machine might decide otherwise."""
    if site is not None:
        chosen: Device = "cuda" if any(p.device == "cuda" for p in site.partitions) else "cpu"
        return Here(device=chosen if device == "auto" else device, gpus=None, cpus=None, site=site)
    if device == "cpu":
        return Here(device=device, gpus=None, cpus=cpus)
    count = gpus if isinstance(gpus, int) else gpus()
    if device == "cuda":  # accepted without a GPU: `check` tells the driver why there is none
        return Here(device=device, gpus=count or None, cpus=cpus)
    return Here(device="cuda" if count else "cpu", gpus=count, cpus=cpus)


def check(plan: Plan, results: Path = Path("results")) -> None:
    """Raises UserError with a line for each thing that the plan needs and that is not here.

    For the driver alone: a job's node may see other folders.
    """
    if lines := [*_partitions(plan), *_gpus(plan), *_data(plan, results)]:
        raise UserError("\n".join(lines))


def unready(plan: Plan) -> list[str]:
    """What the user must fill in before jobs can be submitted, one line for each thing."""
    if plan.site is None:
        return []
    needed = [planned.setting.shape for planned in plan.settings]
    needed += [proof.shape for proofs in (plan.gates, plan.references, plan.spot_checks) for proof in proofs.values()]
    partitions = (shapes.partition_for(shape, plan.site, plan.config)[0] for shape in needed)
    used = [partition for partition in partitions if partition]
    missing = [*plan.site.missing(plan.config.runtime_minutes, used), *login_node.unready(plan.site)]
    missing += plan.stacks.unrecorded
    return [*missing, *unfit_paths(Path.cwd(), plan.root.resolve(), sys.prefix, plan.config.task)]


def unfit_paths(*paths: str | Path) -> Iterator[str]:
    """A line for each file or folder whose name fails in a Slurm job, or would run as a command.

    Snakemake's Slurm plugin puts the job's command into double quotes, where the shell expands these characters.
    """
    for path in dict.fromkeys(map(str, paths)):
        if unfit := next((each for each in path if each in "$`\\" or not each.isprintable()), None):
            shown, named = (text if text.isprintable() else repr(text) for text in (unfit, path))
            yield f"{named}: Slurm jobs cannot work with {shown} in a path; rename it"


def _partitions(plan: Plan) -> Iterator[str]:
    if plan.site and not plan.site.partitions:
        yield f"{plan.site.file}: partitions: missing; add at least one (`sinfo` lists them)"


def _gpus(plan: Plan) -> Iterator[str]:
    on_gpus = any(planned.setting.shape.device == "cuda" for planned in plan.settings)
    if plan.site is None and plan.config.device == "cuda" and on_gpus:
        count, why = usable()
        if not count:
            yield f"config: device: 'cuda' is not allowed: this machine has no usable GPU: {why}; allowed: auto, cpu"


def _data(plan: Plan, results: Path) -> Iterator[str]:
    """Whether the folders that the data is taken from are there, as long as it is not prepared yet."""
    config = plan.config
    own = [each.setting for each in plan.settings if each.setting.dataset.name]  # a script brings its own data
    datasets = {setting.dataset.directory_name: setting for setting in own}
    for directory, setting in datasets.items():
        if (results / "datasets" / directory / MANIFEST).exists():
            continue
        try:
            if config.dataset_root:
                source = None if setting.task.file else SOURCES.get(setting.dataset.name)
                check_root(Path(config.dataset_root).expanduser(), source)
            elif config.dataset_mirror and urlsplit(config.dataset_mirror).scheme == "file":
                folder_of(config.dataset_mirror)
        except UserError as error:
            yield f"config: {error}"
