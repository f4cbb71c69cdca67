"""What the planner warns of: settings that can run, and tell little or cost much."""

from __future__ import annotations

from collections.abc import Iterator

from relay.planning import segments, shapes
from relay.planning.config import Config
from relay.planning.plan import PlannedSetting
from relay.planning.settings import Here
from relay.spec.labels import counted
from relay.spec.setting import Shape


def cautions(planned: PlannedSetting, config: Config, here: Here) -> Iterator[str]:
    """What the user should know of a setting before it runs, each a text that follows the setting's name."""
    shape = planned.setting.shape
    yield from (*_short_jobs(planned, config), *_crowd(shape, here), *_spread(shape, config, here))


def _short_jobs(planned: PlannedSetting, config: Config) -> Iterator[str]:
    if planned.segment and planned.segment.minutes:
        return  # its steps are not known yet, and are many
    length = segments.steps_in_a_job(
        planned.segment,
        steps_per_epoch=planned.setting.length.steps_per_epoch,
        total_steps=planned.setting.length.total_steps,
        seconds_per_step=None,
    )
    if length <= config.warmup_steps:
        yield f"has jobs of {length} steps: warmup_steps {config.warmup_steps} leave nothing to time"


def _crowd(shape: Shape, here: Here) -> Iterator[str]:
    """More busy threads than CPUs: no error, and no measurement of what so many CPUs would do either."""
    busy = shape.world_size * shape.threads
    if shape.device == "cpu" and here.cpus is not None and busy > here.cpus:
        yield (
            f"computes in {shape.world_size} processes of {counted(shape.threads, 'thread')} each, this machine has "
            f"{here.cpus} CPUs: its speed is not that of {busy} CPUs"
        )


def _spread(shape: Shape, config: Config, here: Here) -> Iterator[str]:
    """A second node before the first one's GPUs are taken costs network and queue (document 003)."""
    if here.site is None or shape.nodes == 1 or shape.device != "cuda":
        return
    partition, _ = shapes.partition_for(shape, here.site, config)
    if partition and shape.devices_per_node < partition.gpus_per_node:
        yield (
            f"takes {shape.nodes} nodes with {shape.devices_per_node} GPUs each; "
            f"{partition.shown} has {partition.gpus_per_node}: fill a node first"
        )
