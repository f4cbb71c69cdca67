"""What the planner warns of: settings that can run, and tell little or cost much."""

from __future__ import annotations

from collections.abc import Iterator

from relay.planning import segments, shapes
from relay.planning.config import Config
from relay.planning.plan import Setting
from relay.planning.settings import Here


def cautions(setting: Setting, config: Config, here: Here) -> Iterator[str]:
    """A line for each thing that the user should know of a setting before it runs."""
    named = f"{setting.run.setting} (comparisons[{setting.comparison}])"
    for line in (*_short_jobs(setting, config), *_crowd(setting, here), *_spread(setting, config, here)):
        yield f"{named} {line}"


def _short_jobs(setting: Setting, config: Config) -> Iterator[str]:
    if setting.segment and setting.segment.minutes:
        return  # its steps are not known yet, and are many
    length = segments.steps_in_a_job(
        setting.segment,
        steps_per_epoch=setting.run.steps_per_epoch,
        total_steps=setting.run.total_steps,
        seconds_per_step=None,
    )
    if length <= config.warmup_steps:
        yield f"has jobs of {length} steps: warmup_steps {config.warmup_steps} leave nothing to time"


def _crowd(setting: Setting, here: Here) -> Iterator[str]:
    """More busy threads than CPUs: no error, and no measurement of what so many CPUs would do either."""
    run = setting.run
    busy = run.world_size * run.threads
    if run.device == "cpu" and here.cpus is not None and busy > here.cpus:
        threads = f"{run.threads} thread{'s' * (run.threads > 1)}"
        yield (
            f"computes in {run.world_size} processes of {threads} each, this machine has {here.cpus} CPUs: "
            f"its speed is not that of {busy} CPUs"
        )


def _spread(setting: Setting, config: Config, here: Here) -> Iterator[str]:
    """A second node before the first one's GPUs are taken costs network and queue (document 003)."""
    run, site = setting.run, here.site
    if site is None or run.nodes == 1 or run.device != "cuda":
        return
    partition, _ = shapes.partition_for(run, site, config)
    if partition and run.devices_per_node < partition.gpus_per_node:
        yield (
            f"takes {run.nodes} nodes with {run.devices_per_node} GPUs each; "
            f"{partition.shown} has {partition.gpus_per_node}: fill a node first"
        )
