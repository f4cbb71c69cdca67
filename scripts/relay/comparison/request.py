"""The time of a whole training, as jobs do it; and what to ask Slurm for: memory from measured peaks, time from speed.

Beside its steps a run takes its starts (imports, compilation, loading) once for each job, evaluations and saves.
The latter two grow with the length of the training, and so do the starts of a chain's jobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.comparison.needed import LEAST_MINUTES, MARGIN, START_SECONDS, memory
from relay.comparison.wording import number
from relay.spec.job import Job
from relay.spec.run import Run

SAVING_SECONDS = 60.0  # kept free at the end of a chain's jobs, in which they save


def training_seconds(run: Run, summary: Mapping[str, Any]) -> float:
    """The seconds of all the run's steps: as recorded, or by the measured speed where that is more."""
    if run.strategy.script:  # how many steps it has is not known
        return float(summary["train_seconds"] or 0.0)
    samples = run.length.total_steps * run.batch.global_batch_size
    by_speed = samples / summary["samples_per_second"] if summary.get("samples_per_second") else 0.0
    return max(float(summary["train_seconds"] or 0.0), by_speed)


def outside_seconds(summary: Mapping[str, Any], times: float = 1) -> float:
    """The seconds beside the steps of a training that is so many times as long as the run."""
    once = once_seconds(summary)
    return once + times * (_beside_steps(summary) - once)


def once_seconds(summary: Mapping[str, Any]) -> float:
    """The seconds that a longer training does not take again: the start of a single job."""
    start = sum(summary.get(part) or 0.0 for part in ("startup_seconds", "loading_seconds"))
    return min(start, _beside_steps(summary)) if summary["attempts"] == 1 else 0.0


def _beside_steps(summary: Mapping[str, Any]) -> float:
    return max(0.0, float(summary["allocated_seconds"]) - (summary["train_seconds"] or 0.0))


def whole_seconds(run: Run, summary: Mapping[str, Any], times: float = 1) -> float:
    """The seconds of the whole training, if it is so many times as long as the run."""
    return times * training_seconds(run, summary) + outside_seconds(summary, times)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A batch job, or a chain of `jobs` of them, one after the other. Tasks, CPUs, GPUs and memory are per node.

    `memory_mb` is None where no memory is asked for. `memory_why` and `time_why` say where the figures come from.
    `expected_seconds` are those of all jobs together, without the margin: steps, starts, evaluations and saves.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    memory_mb: int | None
    minutes: int
    jobs: int
    expected_seconds: float
    memory_why: str
    time_why: str

    @property
    def cpus(self) -> int:
        """The CPUs of all nodes."""
        return self.nodes * self.tasks_per_node * self.cpus_per_task

    @property
    def gpus(self) -> int:
        """The GPUs of all nodes."""
        return self.nodes * self.gpus_per_node


def request(
    run: Run, summaries: Sequence[Mapping[str, Any]], job: Job | None, least_minutes: int = 0, times: float = 1
) -> Request:
    """What to ask for to train as the finished repeats did. `job` is what they asked for; None without a scheduler.

    A chain is needed where the training takes longer than the time limit of `job`. `least_minutes` is the shortest job
    that the cluster wants. `times`: for a training that is so many times as long. `summaries` are those of the repeats,
    at least one.
    """
    shape = run.shape
    tasks = shape.processes_per_node if shape.launcher == "srun" else 1
    memory_mb, memory_why = memory(run, summaries, job)
    minutes, jobs, expected_seconds, time_why = _time(
        run, summaries, job.minutes if job else None, least_minutes, times
    )
    return Request(
        nodes=shape.nodes,
        tasks_per_node=tasks,
        cpus_per_task=shape.cpus_per_node // tasks,
        gpus_per_node=shape.gpus_per_node,
        memory_mb=memory_mb,
        minutes=minutes,
        jobs=jobs,
        expected_seconds=round(expected_seconds, 3),
        memory_why=memory_why,
        time_why=time_why,
    )


def _time(
    run: Run, summaries: Sequence[Mapping[str, Any]], limit_minutes: int | None, least_minutes: int, times: float
) -> tuple[int, int, float, str]:
    """The minutes of a job, the number of jobs, the seconds that all are expected to take, and why."""
    trained = times * max(training_seconds(run, each) for each in summaries)
    outside = [outside_seconds(each, times) for each in summaries]
    once = max(outside)  # of all a run's jobs together: their starts, evaluations and last saves
    needed = (trained + once) * (1 + MARGIN) + START_SECONDS
    what = "the whole command" if run.strategy.script else f"{times * run.length.epochs:g} epochs"
    why = (
        f"for {what}, {number(trained, 2)} s of training in the slowest repeat, "
        f"{number(once, 2)} s for starts, evaluations and saves, {100 * MARGIN:.0f} % more as a margin, and "
        f"{START_SECONDS:.0f} s for Slurm's start, in whole minutes"
    )
    minutes = max(LEAST_MINUTES, math.ceil(needed / 60))
    if limit_minutes is None or minutes <= limit_minutes:
        low = min(least_minutes, limit_minutes or least_minutes)
        if minutes < low:
            return low, 1, trained + once, f"{why}; the cluster wants at least {low} minutes"
        return minutes, 1, trained + once, why
    in_a_job = max(seconds / each["attempts"] for seconds, each in zip(outside, summaries, strict=True))
    useful = max(30.0, 60.0 * limit_minutes - START_SECONDS - SAVING_SECONDS - in_a_job * (1 + MARGIN))
    jobs = math.ceil(trained * (1 + MARGIN) / useful)
    chain_why = f"{why}: more than the {limit_minutes} minutes of a job (runtime_minutes)"
    return limit_minutes, max(2, jobs), trained + once, chain_why
