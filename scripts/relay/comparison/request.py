"""The time of a whole training, as jobs do it; and what to ask Slurm for: memory from measured peaks, time from speed.

Each job has a start, because a new process imports, loads and compiles again. All else grows with the training: steps,
evaluations and saves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relay.comparison.columns import MEBIBYTE, epochs, number
from relay.run_folder.summary import Summary
from relay.spec.job import Job
from relay.spec.run import Run

MARGIN = 0.25  # above what was measured, for memory and for time
STARTERS_MB = 512  # a node's memory for what starts the processes: this project's Python, torchrun, srun
START_SECONDS = 60.0  # for Slurm, and for a node that is slower to start than the measured ones
LEAST_MINUTES = 2
SAVING_SECONDS = 60.0  # kept free at the end of a chain's jobs, in which they save
LEAST_USEFUL_SECONDS = 30.0  # of a job, however short its limit is


@dataclass(frozen=True)
class Course:
    """What a training's seconds are, as a repeat measured it: the `start` of each job; `steps`; and what is `between`.

    The start includes what the first steps took longer than others: the compilation, and other things of the warm-up.
    Between steps are evaluations and saves. `jobs` are those of the repeat.
    """

    start: float
    steps: float
    between: float
    jobs: int

    @property
    def whole(self) -> float:
        """The seconds of the measured training."""
        return self.start * self.jobs + self.steps + self.between

    @property
    def once(self) -> float:
        """Those that a longer training does not take again: the start of a single job."""
        return self.start if self.jobs == 1 else 0.0

    def starts(self, times: float = 1, limit_minutes: int | None = None) -> float:
        """The seconds of all starts, if the training is so many times as long, in jobs of at most so many minutes.

        Where no limit is given, as many jobs are needed for each part of the training as the repeat had.
        """
        if limit_minutes is None:
            return self.start * (1 if self.jobs == 1 else times * self.jobs)
        if self.start + times * (self.steps + self.between) + START_SECONDS <= 60 * limit_minutes:
            return self.start
        return self.start * self.jobs_of(limit_minutes, times)

    def jobs_of(self, limit_minutes: int, times: float = 1, margin: float = 0.0) -> int:
        """How many jobs of so many minutes the steps take, and what is between them, each with its own start."""
        kept = START_SECONDS + SAVING_SECONDS + self.start * (1 + margin)
        useful = max(LEAST_USEFUL_SECONDS, 60.0 * limit_minutes - kept)
        return math.ceil(times * (self.steps + self.between) * (1 + margin) / useful)

    def seconds(self, times: float = 1, limit_minutes: int | None = None) -> float:
        """Those of the whole training, likewise."""
        return times * (self.steps + self.between) + self.starts(times, limit_minutes)


def course(run: Run, summary: Summary) -> Course:
    """What the seconds of a finished repeat went to.

    All steps count at the measured speed. Of a script, the number of steps is not known: they count as recorded.
    """
    recorded = steps = summary.train_seconds or 0.0
    if run.strategy.script is None and summary.samples_per_second:
        steps = run.length.total_steps * run.batch.global_batch_size / summary.samples_per_second
    beside, slower = max(0.0, summary.allocated_seconds - recorded), max(0.0, recorded - steps)
    starts = min((summary.startup_seconds or 0.0) + (summary.loading_seconds or 0.0), beside)
    return Course((starts + slower) / summary.attempts, steps, beside - starts, summary.attempts)


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


def request(
    run: Run, summaries: Sequence[Summary], job: Job | None, least_minutes: int = 0, times: float = 1
) -> Request:
    """What to ask for to train as the finished repeats did. `job` is what they asked for; None without a scheduler.

    A chain is needed where the training takes longer than the time limit of `job`. `least_minutes` is the shortest job
    that the cluster wants. `times`: for a training that is so many times as long. `summaries` are those of the repeats,
    at least one.
    """
    shape = run.shape
    tasks = shape.processes_per_node if shape.launcher == "srun" else 1
    memory_mb, memory_why = memory(run, summaries, job)
    return Request(
        nodes=shape.nodes,
        tasks_per_node=tasks,
        cpus_per_task=shape.cpus_per_node // tasks,
        gpus_per_node=(job and job.whole_node_gpus) or shape.gpus_per_node,
        memory_mb=memory_mb,
        memory_why=memory_why,
        **_time(run, summaries, job.minutes if job else None, least_minutes, times),
    )


def _time(
    run: Run, summaries: Sequence[Summary], limit_minutes: int | None, least_minutes: int, times: float
) -> dict[str, Any]:
    """The `minutes` of a job, the number of `jobs`, the seconds that all are expected to take, and why."""
    courses = [course(run, each) for each in summaries]
    steps = times * max(each.steps for each in courses)

    def beside(limit: int | None) -> float:
        return max(each.seconds(times, limit) - times * each.steps for each in courses)

    wanted = (steps + beside(None)) * (1 + MARGIN) + START_SECONDS
    minutes, jobs = max(LEAST_MINUTES, math.ceil(wanted / 60)), 1
    chain = limit_minutes if limit_minutes is not None and minutes > limit_minutes else None
    what = "the whole command" if run.strategy.script else epochs(times * run.length.epochs)
    why = (
        f"for {what}, {number(steps, 2)} s of training in the slowest repeat, "
        f"{number(beside(chain), 2)} s for starts, evaluations and saves, {100 * MARGIN:.0f} % more as a margin, and "
        f"{START_SECONDS:.0f} s for Slurm's start, in whole minutes"
    )
    if chain is not None:
        jobs, minutes = max(2, *(each.jobs_of(chain, times, MARGIN) for each in courses)), chain
        why += f": more than the {chain} minutes of a job (runtime_minutes)"
    elif minutes < (least := min(least_minutes, limit_minutes or least_minutes)):
        minutes, why = least, f"{why}; the cluster wants at least {least} minutes"
    return {"minutes": minutes, "jobs": jobs, "expected_seconds": round(steps + beside(chain), 3), "time_why": why}


def memory(run: Run, summaries: Sequence[Summary], job: Job | None) -> tuple[int | None, str]:
    """A node's memory in MB, and why. At most as much as the measured jobs had, which was enough."""
    if job is not None and job.memory_mb is None:
        return None, "this partition gives memory by itself"
    peaks = [each.peak_main_memory_bytes for each in summaries if each.peak_main_memory_bytes]
    if not peaks:
        why = "as the measured jobs had, because their peak in main memory was not recorded"
        return (job.memory_mb, why) if job else (None, "not measured: ask for what your cluster gives by default")
    held_mb, measured = _held(run, summaries, max(peaks) / MEBIBYTE)
    needed = math.ceil((held_mb + STARTERS_MB) * (1 + MARGIN))
    why = f"{measured}, {STARTERS_MB} MiB for what starts them, and {100 * MARGIN:.0f} % more as a margin"
    if job is not None and job.memory_mb is not None and needed > job.memory_mb:
        return job.memory_mb, f"as the measured jobs had, which was enough; the bound is {needed} MiB: {why}"
    return needed, why


def _held(run: Run, summaries: Sequence[Summary], peak_mb: float) -> tuple[float, str]:
    """What the processes of a node hold in MiB, data workers included, and how it is known. `peak_mb`: of a process."""
    processes, workers, script = run.shape.processes_per_node, run.feeding.data_workers, run.strategy.script
    node_mb = max((each.peak_node_memory_bytes or 0 for each in summaries), default=0) / MEBIBYTE
    # What is no more than the processes' own peak has missed even that.
    if (script or workers) and node_mb > processes * peak_mb:
        started = "all that the command starts" if script else "its data workers"
        return node_mb, f"{node_mb:.0f} MiB measured at a node's peak, with {started}"
    alone = f"{peak_mb:.0f} MiB measured at the peak of a process × {processes}"
    if not workers:
        return processes * peak_mb, alone
    return processes * (1 + workers) * peak_mb, f"{alone} × {1 + workers} for its data workers, as much each at most"
