"""Warnings with advice: a closed list. Each has the figure that set it off, and what to do next.

To add one, write a function that takes a `SettingResult` and yields warnings, and add it to `CHECKS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from relay.comparison.candidates import cores
from relay.comparison.columns import category
from relay.comparison.measured import SettingResult
from relay.comparison.request import LEAST_MINUTES, MARGIN, START_SECONDS, request
from relay.comparison.statistics import LEAST_REPEATS, oddest
from relay.comparison.wording import number, percent
from relay.spec.labels import counted

WAITING = 0.10  # part of the measured time spent waiting for data
APART = 0.10  # of one repeat from the mean of the others
LEAST_PER_PROCESS = 32  # samples of a step on each process
LEAST_EFFICIENCY = 0.7  # of a strategy on more devices, below which a small batch is named as the cause
USED = 0.5  # of the memory or time asked for
UNUSED_MB, UNUSED_MINUTES = 1000, 10  # less than that is not worth a warning
BUSY = 0.5  # mean utilisation of a GPU
IDLE = 0.3  # of an observed step


@dataclass(frozen=True)
class Warned:
    """A warning: its kind (a name of the closed list), the setting, the figure that set it off, and the advice."""

    kind: str
    setting: str
    figure: str
    advice: str


def warnings(settings: Sequence[SettingResult]) -> list[Warned]:
    """All warnings on the settings that have finished, in the order of the list."""
    done = [each for each in settings if category(each.row) == "done" and each.summaries]
    return [found for check in CHECKS for each in done for found in check(each)]


def loader_bound(each: SettingResult) -> Iterator[Warned]:
    """The processes wait for their data."""
    waited = each.row["data_wait_fraction"]
    if waited is not None and waited > WAITING:
        remedy = (
            f"give it more data_workers ({each.run.feeding.data_workers} now), or loader: resident, where the "
            "dataset fits into memory"
            if each.run.feeding.loader == "dataloader"
            else "use fewer processes on a node, or loader: dataloader with data_workers on a GPU"
        )
        yield Warned("loader-bound", each.name, f"waits for data {percent(waited, 0)} of the measured time", remedy)


def too_few_repeats(each: SettingResult) -> Iterator[Warned]:
    """The spread between jobs is not known, or hardly."""
    count = len(each.speeds)
    if 0 < count < LEAST_REPEATS:
        what = "no spread is known" if count == 1 else "the interval is 3.6 times as wide as with three"
        yield Warned(
            "too few repeats", each.name, f"{counted(count, 'repeat')}: {what}", f"set repeats: {LEAST_REPEATS} or more"
        )


def noisy_node(each: SettingResult) -> Iterator[Warned]:
    """One repeat is far from the others. It counts all the same."""
    timed = [record for record in each.records if record.speed]
    odd = oddest(each.speeds) if timed else None
    if odd is None or max(odd.ratio, 1 / odd.ratio) <= 1 + APART:
        return
    record = timed[odd.place]
    hosts = ", ".join(record.summary["hosts"]) if record.summary else ""
    quicker = "it counts in the mean as the others do; perhaps something slowed those down: measure again"
    slower = "it counts in the mean as the others do; look at what else ran on that node then, or measure more repeats"
    yield Warned(
        "noisy node",
        each.name,
        f"repeat {record.run.repeat + 1} ran at {odd.ratio:.2f} times the speed of the others, on {hosts}",
        quicker if odd.ratio > 1 else slower,
    )


def small_batch(each: SettingResult) -> Iterator[Warned]:
    """The batch is divided among so many processes that each has little to do between two exchanges."""
    run, efficiency = each.run, each.row["scaling_efficiency"]
    share = run.batch.global_batch_size / run.shape.world_size
    if efficiency is not None and efficiency < LEAST_EFFICIENCY and share < LEAST_PER_PROCESS:
        yield Warned(
            "batch too small for so many devices",
            each.name,
            f"{share:.3g} samples a step for each of {run.shape.world_size} processes, and a scaling efficiency of "
            f"{percent(efficiency, 0)}",
            "use fewer devices, or a larger global_batch_size with learning_rate_scaling, if the accuracy stands it",
        )


def memory_not_used(each: SettingResult) -> Iterator[Warned]:
    """The jobs asked for much more memory than they used."""
    asked = each.job.memory_mb if each.job else None
    if asked is None or not any(summary.get("peak_main_memory_bytes") for summary in each.summaries):
        return
    needed = request(each.run, each.summaries, each.job).memory_mb
    if needed is not None and needed < USED * asked and asked - needed >= UNUSED_MB:
        yield Warned(
            "memory asked for and not used",
            each.name,
            f"{asked:,} MB of each node, of which {needed:,} MB would do, a margin included",
            "set memory_mb_per_node to what the neediest setting needs, for it holds for all",
        )


def time_not_used(each: SettingResult) -> Iterator[Warned]:
    """The jobs asked for much more time than they used."""
    if each.job is None:
        return
    held = [sum(job["parts"].values()) for summary in each.summaries for job in summary.get("jobs", ())]
    means = (summary["allocated_seconds"] / summary["attempts"] for summary in each.summaries)
    longest = max([*held, *means]) / 60
    if longest < USED * each.job.minutes and each.job.minutes - longest >= UNUSED_MINUTES:
        wanted = max(LEAST_MINUTES, math.ceil(longest * (1 + MARGIN) + START_SECONDS / 60))
        yield Warned(
            "time asked for and not used",
            each.name,
            f"{each.job.minutes} minutes, of which a job used {number(longest, 2)}, and {wanted} would do",
            "set runtime_minutes to what the longest setting needs, for it holds for all: short jobs start sooner",
        )


def shared_cpus(each: SettingResult) -> Iterator[Warned]:
    """More threads than CPUs."""
    for summary in each.summaries:
        threads, cpus = summary.get("threads_on_node", 0), summary.get("cpus_of_node", 0)
        if threads > cpus:
            yield Warned(
                "oversubscribed CPUs",
                each.name,
                f"{threads} threads on {cpus} CPUs ({counted(cores(each.run), 'core')} declared)",
                "ask for as many CPUs as processes × threads, or set fewer threads",
            )
            return


def idle_gpu(each: SettingResult) -> Iterator[Warned]:
    """The GPUs had little to do; or what they did was not recorded."""
    known = [s["gpu_utilisation"] for s in each.summaries if s.get("gpu_utilisation") is not None]
    if known and (mean := sum(known) / len(known)) < BUSY:
        yield Warned(
            "idle GPU",
            each.name,
            f"the GPUs were busy {percent(mean, 0)} of the time",
            "use a larger batch, several processes on a GPU (strategy mps), or CPUs",
        )
    elif not known and each.run.shape.device == "cuda" and each.run.length.monitor_seconds:
        yield Warned(
            "GPUs not looked at",
            each.name,
            "no figure of its GPUs was recorded",
            "install nvidia-ml-py into the jobs' environment; the log of each job says what was missing",
        )


def bound_by_launches(each: SettingResult) -> Iterator[Warned]:
    """A GPU waits for the CPU to start its kernels, one by one."""
    idle = each.row["step_idle_fraction"]
    graphs = [summary for summary in each.summaries if "replayed_steps" in summary]
    if idle is None or idle < IDLE or any(summary["replayed_steps"] for summary in graphs):
        return
    why = next((summary["not_captured"] for summary in graphs if summary["not_captured"]), "")
    yield Warned(
        "bound by launches",
        each.name,
        f"the GPU has nothing to do in {percent(idle, 0)} of a step, until the CPU has started the next kernel",
        "use a larger batch, or compile: true"
        + ("" if graphs else ", or cuda_graph: true")
        + (f"; its steps are not captured as a CUDA graph, because {why}" if why else ""),
    )


def apart_from_others(each: SettingResult) -> Iterator[Warned]:
    """What the table warns of: a result far from the others', or other code, data or libraries."""
    if each.row["warning"]:
        yield Warned("look before you use it", each.name, each.row["warning"], "see docs/measurement.md")


CHECKS: tuple[Callable[[SettingResult], Iterator[Warned]], ...] = (
    apart_from_others,
    too_few_repeats,
    noisy_node,
    loader_bound,
    small_batch,
    shared_cpus,
    idle_gpu,
    bound_by_launches,
    memory_not_used,
    time_not_used,
)
