"""The planner's warnings: settings whose results say little or cost much, and what the whole plan brings."""

import sys
from collections import Counter as Sum
from collections.abc import Iterator

from relay.config.config import Config
from relay.datasets.public import SOURCES
from relay.environments import software
from relay.planning.inputs import Here
from relay.planning.plan import Plan, PlannedSetting
from relay.planning.segments import STARTUP_SECONDS
from relay.slurm import shapes
from relay.slurm.counters import all_counters
from relay.spec.arithmetic import without_tensor_cores
from relay.spec.labels import counted
from relay.spec.run import Setting
from relay.spec.setting import Shape
from relay.spec.site import Site
from relay.spec.site_blocks import Partition

STEP_EPOCHS, PER_DEVICE = "learning_rate_step_epochs", "batch_per_device"  # axes


def of_setting(planned: PlannedSetting, plan: Plan, here: Here) -> Iterator[str]:
    """Warnings about a setting, each a text that follows the setting's name. `plan` need not have it yet."""
    shape, config = planned.setting.shape, plan.config
    partition = shapes.partition_for(shape, here.site, config)[0] if here.site else None
    yield from (*_short_jobs(planned, plan), *_crowd(shape, here), *_idle(shape), *_spread(shape, partition))
    yield from (*_never_stepped(planned, config), *_more_than_the_set(planned, config))
    yield from _under_min_minutes(planned, plan)
    if here.site and partition:
        yield from _of_the_partition(planned.setting, config, here.site, partition)
    if here.site and shape.device == "cuda":
        yield from software.other_cuda(here.site, planned.setting.strategy.stack)


def _never_stepped(planned: PlannedSetting, config: Config) -> Iterator[str]:
    """Warn of a schedule that was asked for and whose first step would come after the run's end."""
    schedule = planned.setting.optimization
    every, warmup = schedule.learning_rate_step_epochs, schedule.learning_rate_warmup_epochs or 0
    steps_in_config: list[int | None] = getattr(config.comparisons[planned.comparison], STEP_EPOCHS)
    if config.shrink or every is None or every not in steps_in_config:
        return
    epochs = planned.setting.length.epochs
    if every + warmup >= epochs:
        yield (
            f"has {STEP_EPOCHS} {every}, and its {epochs:g} epochs end before the first step: its "
            "learning rate stays constant"
        )


def _more_than_the_set(planned: PlannedSetting, config: Config) -> Iterator[str]:
    """Warn of a device's batch beyond its share of the set: a step then takes the set, as a DataLoader does."""
    setting = planned.setting
    devices, count = setting.shape.devices, setting.dataset.train_count
    of_comparison: list[int | None] = getattr(config.comparisons[planned.comparison], PER_DEVICE)
    for per_device in filter(None, of_comparison):
        if per_device * devices > count and setting.batch.global_batch_size == count // devices * devices:
            yield (
                f"has {PER_DEVICE} {per_device}, and {devices} devices share the {count} samples of "
                f"{setting.dataset.name}: each step takes {count // devices} on each device"
            )


def _under_min_minutes(planned: PlannedSetting, plan: Plan) -> Iterator[str]:
    """Warn of jobs that are expected to be shorter than the cluster wants: as asked for, or by the measured speed."""
    least = plan.site.min_minutes if plan.site else None
    if plan.site is None or least is None:
        return
    minutes = planned.segment.minutes if planned.segment else None
    if minutes is None and (seconds_per_step := plan.measured.get(planned.id)) is not None:
        steps = min(plan.steps_in_a_job(planned), planned.setting.length.total_steps)
        minutes = (STARTUP_SECONDS + steps * seconds_per_step) / 60
    if minutes is not None and minutes < least:
        yield (
            f"has jobs of about {minutes:.3g} minutes, {plan.site.file} names {least} as the shortest useful ones "
            "(min_minutes): give longer segments"
        )


def _of_the_partition(setting: Setting, config: Config, site: Site, partition: Partition) -> Iterator[str]:
    """Warn of nodes that a job does not fill and has alone, memory not asked for, doubtful limits, slow precisions."""
    shape = setting.shape
    if config.memory_mb_per_node and not partition.asks_memory:
        yield (
            f"gets what memory {partition.shown} gives: memory_mb_per_node {config.memory_mb_per_node} is not asked "
            "for there (asks_memory: false)"
        )
    precision, capability = setting.computation.precision, partition.capability
    if shape.device == "cuda" and capability and (slow := without_tensor_cores(precision, capability)):
        yield f"is for {partition.shown}, where {slow}"
    taken = partition.taken(shape.nodes, shape.gpus_per_node, shape.cpus_per_node)
    for limits, where in ((site.limits, "the cluster"), (partition.limits, partition.shown)):
        if not limits.confirmed and (over := limits.exceeded(taken)):
            yield (
                f"takes {', '.join(over)} in {where}, as is said of it ({site.file}, limits): Slurm may never "
                "start it; ask your centre, then correct the limits, or set confirmed: true to have such jobs skipped"
            )
    used = {"GPUs": (shape.gpus_per_node, partition.gpus_per_node)}
    used |= {"CPUs": (shape.cpus_per_node, partition.cpus_per_node)}
    partly = [f"{some} of the {all_} {unit}" for unit, (some, all_) in used.items() if some < all_]
    if partition.whole_nodes and partly:
        yield f"uses {' and '.join(partly)} of each node, and {partition.shown} gives and charges whole nodes"


def _short_jobs(planned: PlannedSetting, plan: Plan) -> Iterator[str]:
    if planned.setting.strategy.script or (planned.segment and planned.segment.minutes):
        return  # the number of steps is not known yet; it will be large
    steps, warmup = plan.steps_in_a_job(planned), plan.config.warmup_steps
    if steps <= warmup:
        yield f"has jobs of {counted(steps, 'step')}: warmup_steps {warmup} leave no step to be timed"


def _crowd(shape: Shape, here: Here) -> Iterator[str]:
    """Warn of more busy threads than CPUs: the run works, but it does not show the speed of that many CPUs."""
    busy = shape.world_size * shape.threads
    if shape.device == "cpu" and here.cpus is not None and busy > here.cpus:
        processes, threads = counted(shape.world_size, "process"), counted(shape.threads, "thread")
        yield (
            f"computes in {processes} of {threads} each, this machine has {counted(here.cpus, 'CPU')}: "
            f"its speed is not that of {busy} CPUs"
        )


def _idle(shape: Shape) -> Iterator[str]:
    """Warn of inter-op threads without work: in eager mode, Python calls one operation after the other."""
    if shape.interop_threads > 1:
        yield (
            f"has {shape.interop_threads} interop_threads: only TorchScript programs use more than one, and no network "
            "here is one; give threads instead"
        )


def _spread(shape: Shape, partition: Partition | None) -> Iterator[str]:
    """Warn of several partly used nodes: they cost network traffic and time in the queue (document 003)."""
    if partition and shape.nodes > 1 and shape.device == "cuda" and shape.devices_per_node < partition.gpus_per_node:
        yield (
            f"takes {shape.nodes} nodes with {counted(shape.devices_per_node, 'GPU')} each; "
            f"{partition.shown} has {partition.gpus_per_node}: fill a node first"
        )


def of_plan(plan: Plan) -> list[str]:
    """A line for data that is not read, for each limit that all runs at once would exceed, and for what a site has."""
    lines = list(_unread_data(plan))
    if site := plan.site:
        lines += [*_more_than_at_once(plan, site), *_short_time_limit(plan, site), *_another_python(site)]
    return lines


def _unread_data(plan: Plan) -> Iterator[str]:
    own = [each.setting for each in plan.settings if not each.setting.strategy.script]
    if own and not any(each.task.file or each.dataset.name in SOURCES for each in own):
        for key in ("dataset_root", "dataset_mirror"):
            if given := getattr(plan.config, key):
                yield f"{key}: '{given}' is not read: task '{own[0].task.name}' makes its data"


def _more_than_at_once(plan: Plan, site: Site) -> Iterator[str]:
    """A run has one job at a time in the queue, so that all jobs at once are as many as the runs."""
    counters = all_counters(site)
    if not counters:
        return
    total: Sum[str] = Sum()
    for planned in plan.settings:
        adds = shapes.counted(planned.setting.shape, site, plan.config)
        total.update({name: planned.repeats * each for name, each in adds.items()})
    for name, counter in counters.items():
        if total[name] > counter.most:
            yield (
                f"{counted(len(plan.runs), 'run')} at once would take {total[name]} {counter.shown}, of which a user "
                f"may have {counter.most} at once ({site.file}): some wait for others, and are not even in the queue"
            )


def _short_time_limit(plan: Plan, site: Site) -> Iterator[str]:
    if plan.runs and site.min_minutes and plan.config.runtime_minutes < site.min_minutes:
        yield (
            f"runtime_minutes: {plan.config.runtime_minutes} is under the {site.min_minutes} that {site.file} names as "
            "the shortest useful job (min_minutes); raise it"
        )


def _another_python(site: Site) -> Iterator[str]:
    """Nodes make their environments with the driver's Python, unless the site names one."""
    running, given = "{}.{}".format(*sys.version_info), site.environment
    if given.driver_python not in (None, running) and not given.python:
        first = f"{given.install_after}; " if given.install_after else ""
        remedy = f"give `{first}make install PYTHON=python{given.driver_python}`"
        yield f"the driver runs Python {running}, {site.file} takes {given.driver_python} for granted; {remedy}"
