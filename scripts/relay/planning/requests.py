"""What jobs ask Slurm for: memory and time as earlier runs have shown them; and when Slurm would start them."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from relay.base import typed
from relay.base.errors import NoNode, Unavailable, UserError
from relay.base.grouped import grouped
from relay.comparison.request import LEAST_MINUTES, MARGIN, START_SECONDS, memory
from relay.planning.plan import Plan, PlannedSetting
from relay.run_folder import job_times
from relay.run_folder.job_times import JobTimes
from relay.run_folder.places import Places
from relay.run_folder.summary import FILE, Summary
from relay.slurm import commands, shapes
from relay.slurm.requested import Sized
from relay.spec.identity import fingerprint
from relay.spec.job import Job
from relay.spec.labels import counted
from relay.spec.run import Run, Setting


@dataclass(frozen=True)
class Trained:
    """A run that has trained: the times of its jobs, what they asked Slurm for, and its summary once it is done."""

    run: Run
    times: tuple[JobTimes, ...]
    job: Job | None
    summary: Summary | None


def trained_before(plan: Plan, planned: PlannedSetting) -> list[Trained]:
    """The runs of a setting that have trained; where there are none, those that differ from it in their length only."""
    alike = _trained_by_kind(plan).get(_kind(planned.setting), [])
    return [each for each in alike if each.run.setting_id == planned.id] or alike


@cache  # all runs of the plan's strategies that have trained in its folder of results are read once
def _trained_by_kind(plan: Plan) -> dict[str, list[Trained]]:
    return grouped(_trained(plan.results, plan.strategies), lambda each: _kind(each.run))


def _trained(results: Path, strategies: Collection[str]) -> Iterator[Trained]:
    for path in sorted((results / "checkpoints").glob("*/chain.json")):
        places = Places(results, path.parent.name)
        if not places.run_id.startswith(tuple(f"{name}-" for name in strategies)):
            continue
        specification = places.run / "run.json"
        try:
            run, job = Run.read(specification), Job.read(specification)
        except (OSError, UserError, ValueError, TypeError, KeyError):
            continue  # of another version, or damaged: it then counts as not measured
        if times := job_times.of_run(places.work):
            summary = typed.read(Summary, places.run / FILE)
            yield Trained(run, tuple(times), job, summary if summary and summary.status == "done" else None)


def _kind(setting: Setting) -> str:
    """What two settings have in common that take the same time and memory for a step."""
    script = setting.strategy.script
    strategy: list[Any] = [setting.strategy.name, setting.strategy.stack, dict(setting.strategy.options)]
    strategy += [script.identity()] if script else []
    optimizer = (setting.task.optimizer, dict(setting.task.optimizer_options))
    groups = (setting.shape, setting.place, setting.computation, setting.feeding, setting.batch)
    return fingerprint([setting.task.name, *optimizer, setting.dataset.directory_name, *strategy, *groups])


def measured(plan: Plan) -> dict[str, Sized]:
    """What the training jobs of each setting need, where runs of it, or of another length of it, have been done.

    Nothing without a cluster, and with `right_size: false`. Settings whose segments are not planned yet are left out.
    """
    if plan.site is None or not plan.config.right_size:
        return {}
    sizes = {planned.id: _sized(plan, planned) for planned in plan.settings}
    return {name: sized for name, sized in sizes.items() if sized}


def _sized(plan: Plan, planned: PlannedSetting) -> Sized | None:
    done = [each for each in trained_before(plan, planned) if each.summary]
    if not done:
        return None
    try:
        steps = min(plan.steps_in_a_job(planned), planned.setting.length.total_steps)
    except UserError:  # a segment in minutes whose speed is not measured
        return None
    declared = plan.job_by_config(next(run for run in plan.runs if run.setting_id == planned.id))
    summaries = [each.summary for each in done if each.summary]
    had = max((each.job.memory_mb or 0 for each in done if each.job), default=0)
    cap = replace(declared, memory_mb=max(had, declared.memory_mb)) if declared.memory_mb else declared
    memory_mb, memory_why = memory(done[0].run, summaries, cap)
    least = max(LEAST_MINUTES, plan.site.min_minutes or 0) if plan.site else LEAST_MINUTES
    if planned.setting.strategy.script:
        minutes, time_why = _of_command(planned, summaries, declared, least)
        return Sized(memory_mb=memory_mb, minutes=minutes, memory_why=memory_why, time_why=time_why)
    times = job_times.slowest([each for run in done for each in run.times])
    trained = steps * (times.seconds_per_step + times.between_seconds_per_step)
    seconds = (times.startup_seconds + trained + times.saving_seconds) * (1 + MARGIN) + START_SECONDS
    minutes = min(declared.minutes, max(least, math.ceil(seconds / 60)))
    time_why = (
        f"{times.startup_seconds:.0f} s to start, {trained:.0f} s for {counted(steps, 'step')} and "
        f"{times.saving_seconds:.0f} s to save in the slowest of {counted(times.jobs, 'job')}, "
        f"{100 * MARGIN:.0f} % more, and {START_SECONDS:.0f} s for Slurm's start"
    )
    return Sized(memory_mb=memory_mb, minutes=minutes, memory_why=memory_why, time_why=time_why)


def _of_command(planned: PlannedSetting, summaries: list[Summary], declared: Job, least: int) -> tuple[int, str]:
    """The minutes of a command's job, and why. One that goes on as a chain uses the time that it has."""
    script = planned.setting.strategy.script
    if script and script.chained:
        return declared.minutes, "its jobs end in time by themselves"
    longest = max(job.seconds for each in summaries for job in each.jobs)
    minutes = max(least, math.ceil((longest * (1 + MARGIN) + START_SECONDS) / 60))
    why = f"{longest:.0f} s in the longest job, {100 * MARGIN:.0f} % more, and {START_SECONDS:.0f} s for Slurm's start"
    return min(declared.minutes, minutes), why


def shown(plan: Plan) -> Iterator[str]:
    """What is asked for by declaration and by measurement, in lines."""
    first = {run.setting_id: run for run in reversed(plan.runs)}
    for name, sized in plan.requests.measured.items():
        declared = plan.job_by_config(first[name])
        job = plan.job(first[name])
        assert job is not None
        text = f"{counted(job.minutes, 'minute')} (declared: {declared.minutes}; measured: {sized.time_why})"
        if job.memory_mb:
            text = f"{job.memory_mb} MB (declared: {declared.memory_mb}; measured: {sized.memory_why}), {text}"
        yield f"asks for, by measurement: {plan.names[name]}: {text}"
    for name, memory_mb in plan.requests.raised.items():
        yield f"asks for more: {plan.names.get(name, name)}: {memory_mb} MB, because a job was killed for memory"


@dataclass(frozen=True)
class ExpectedStart:
    """A line for the user: when the queue would start a job of some shape if it were submitted now.

    `refused` is true where Slurm would not accept the job, `waits` where it would queue it until nodes are back; the
    line then has Slurm's reason.
    """

    line: str
    refused: bool = False
    waits: bool = False


@cache  # Slurm takes a moment for each
def expected(plan: Plan) -> tuple[ExpectedStart, ...]:
    """For a job of each shape: when the queue would start it, or why Slurm refuses it. Nothing without Slurm."""
    return tuple(_expected(plan))


def refused(plan: Plan) -> list[str]:
    """Why Slurm would refuse a job, one line for each shape."""
    return [start.line for start in expected(plan) if start.refused]


def _expected(plan: Plan) -> Iterator[ExpectedStart]:
    if plan.site is None or not commands.available():
        return
    now = datetime.now().astimezone()
    of_shape = {plan.preflight(run): run for run in plan.runs}
    for each in (of_shape[shape] for shape in plan.preflights if shape in of_shape):  # runs are in a random order
        job = plan.job(each)
        assert job is not None
        gpus = f", {counted(each.shape.gpus_per_node, 'GPU')} on each" * (each.shape.gpus_per_node > 0)
        tasks = f"{counted(job.tasks, 'task')} of {counted(job.cpus_per_task, 'CPU')}"
        job_text = f"a job of {counted(each.shape.nodes, 'node')}{gpus}, {tasks}"
        try:
            start = commands.expected_start(shapes.sbatch_flags(job, plan.site), job.partition)
        except Unavailable as error:
            yield ExpectedStart(f"expected start of {job_text}: not known: {error}")
        except NoNode as error:
            text = f"warning: Slurm can start {job_text} on no node now, so that it would wait: {error}"
            yield ExpectedStart(text, waits=True)
        except UserError as error:
            yield ExpectedStart(f"Slurm refuses, for {plan.site.file}, {job_text}: {error}", refused=True)
        else:
            minutes = round(max(0.0, (start - now).total_seconds() / 60)) if start else 0
            yield ExpectedStart(
                f"expected start of {job_text}: in {counted(minutes, 'minute')}, says sbatch --test-only"
            )
