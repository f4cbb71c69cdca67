"""The planner's warnings: settings that can run, but whose results say little or cost much."""

from __future__ import annotations

from collections.abc import Iterator

from relay.planning import segments, shapes
from relay.planning.config import Config
from relay.planning.plan import PlannedSetting
from relay.planning.settings import Here
from relay.spec.labels import counted
from relay.spec.setting import Shape


def cautions(planned: PlannedSetting, config: Config, here: Here) -> Iterator[str]:
    """Warnings about a setting, each a text that follows the setting's name."""
    shape = planned.setting.shape
    yield from (*_short_jobs(planned, config), *_crowd(shape, here), *_spread(shape, config, here))


def _short_jobs(planned: PlannedSetting, config: Config) -> Iterator[str]:
    if planned.segment and planned.segment.minutes:
        return  # the number of steps is not known yet; it will be large
    length = segments.steps_in_a_job(
        planned.segment,
        steps_per_epoch=planned.setting.length.steps_per_epoch,
        total_steps=planned.setting.length.total_steps,
        seconds_per_step=None,
    )
    if length <= config.warmup_steps:
        yield f"has jobs of {length} steps: warmup_steps {config.warmup_steps} leave no step to be timed"


def _crowd(shape: Shape, here: Here) -> Iterator[str]:
    """Warn of more busy threads than CPUs: the run works, but it does not show the speed of that many CPUs."""
    busy = shape.world_size * shape.threads
    if shape.device == "cpu" and here.cpus is not None and busy > here.cpus:
        yield (
            f"computes in {shape.world_size} processes of {counted(shape.threads, 'thread')} each, this machine has "
            f"{here.cpus} CPUs: its speed is not that of {busy} CPUs"
        )


def _spread(shape: Shape, config: Config, here: Here) -> Iterator[str]:
    """Warn of several partly used nodes: they cost network traffic and time in the queue (document 003)."""
    if here.site is None or shape.nodes == 1 or shape.device != "cuda":
        return
    partition, _ = shapes.partition_for(shape, here.site, config)
    if partition and shape.devices_per_node < partition.gpus_per_node:
        yield (
            f"takes {shape.nodes} nodes with {shape.devices_per_node} GPUs each; "
            f"{partition.shown} has {partition.gpus_per_node}: fill a node first"
        )
