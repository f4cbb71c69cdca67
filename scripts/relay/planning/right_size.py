"""Memory and time that training jobs ask for where earlier runs have shown what they need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from relay.base.errors import UserError
from relay.planning.plan import Plan, PlannedSetting
from relay.planning.requests import Sized
from relay.run_folder import job_times
from relay.run_folder.needed import LEAST_MINUTES, MARGIN, START_SECONDS, memory
from relay.spec.job import Job
from relay.spec.labels import counted


def measure(plan: Plan) -> dict[str, Sized]:
    """What the training jobs of each setting need, where runs of it, or of another length of it, have been done.

    Nothing without a cluster, and with `right_size: false`. Settings whose segments are not planned yet are left out.
    """
    if plan.site is None or not plan.config.right_size:
        return {}
    found = {planned.id: _sized(plan, planned) for planned in plan.settings}
    return {name: sized for name, sized in found.items() if sized}


def _sized(plan: Plan, planned: PlannedSetting) -> Sized | None:
    done = [each for each in plan.earlier.of(planned.id, planned.setting) if each.summary]
    if not done:
        return None
    try:
        steps = min(plan.steps_in_a_job(planned), planned.setting.length.total_steps)
    except UserError:  # a segment in minutes whose speed is not measured
        return None
    declared = plan.declared(next(run for run in plan.runs if run.setting_id == planned.id))
    summaries: list[Mapping[str, Any]] = [each.summary for each in done if each.summary]
    had = max((each.job.memory_mb or 0 for each in done if each.job), default=0)
    cap = replace(declared, memory_mb=max(had, declared.memory_mb)) if declared.memory_mb else declared
    memory_mb, memory_why = memory(done[0].run, summaries, cap)
    if planned.setting.strategy.script:
        minutes, time_why = _of_command(planned, summaries, declared)
        return Sized(memory_mb=memory_mb, minutes=minutes, memory_why=memory_why, time_why=time_why)
    times = job_times.slowest([each for run in done for each in run.times])
    trained = steps * (times.seconds_per_step + times.between_seconds_per_step)
    seconds = (times.startup_seconds + trained + times.saving_seconds) * (1 + MARGIN) + START_SECONDS
    least = max(LEAST_MINUTES, (plan.site.min_minutes if plan.site else None) or 0)
    minutes = min(declared.minutes, max(least, math.ceil(seconds / 60)))
    time_why = (
        f"{times.startup_seconds:.0f} s to start, {trained:.0f} s for {steps} steps and {times.saving_seconds:.0f} s "
        f"to save in the slowest of {counted(times.jobs, 'job')}, {100 * MARGIN:.0f} % more, and "
        f"{START_SECONDS:.0f} s for Slurm's start"
    )
    return Sized(memory_mb=memory_mb, minutes=minutes, memory_why=memory_why, time_why=time_why)


def _of_command(planned: PlannedSetting, summaries: list[Mapping[str, Any]], declared: Job) -> tuple[int, str]:
    """The minutes of a command's job, and why. One that goes on as a chain uses the time that it has."""
    script = planned.setting.strategy.script
    if script and script.chained:
        return declared.minutes, "its jobs end in time by themselves"
    longest = max(sum(job["parts"].values()) for each in summaries for job in each["jobs"])
    minutes = max(LEAST_MINUTES, math.ceil((longest * (1 + MARGIN) + START_SECONDS) / 60))
    why = f"{longest:.0f} s in the longest job, {100 * MARGIN:.0f} % more, and {START_SECONDS:.0f} s for Slurm's start"
    return min(declared.minutes, minutes), why


def shown(plan: Plan, names: Mapping[str, str]) -> Iterator[str]:
    """What is asked for by declaration and by measurement, in lines. `names` are the settings' by their ids."""
    first = {run.setting_id: run for run in reversed(plan.runs)}
    for name, sized in plan.requests.measured.items():
        declared = plan.declared(first[name])
        asked = plan.job(first[name])
        assert asked is not None
        told = f"{asked.minutes} minutes (declared: {declared.minutes}; measured: {sized.time_why})"
        if asked.memory_mb:
            told = f"{asked.memory_mb} MB (declared: {declared.memory_mb}; measured: {sized.memory_why}), {told}"
        yield f"asks for, by measurement: {names[name]}: {told}"
    for name, memory_mb in plan.requests.raised.items():
        yield f"asks for more: {names.get(name, name)}: {memory_mb} MB, because a job was killed for memory"
