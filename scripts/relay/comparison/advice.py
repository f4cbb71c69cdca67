"""Warnings with advice: a closed list. Each has the figure that set it off, and what to do next.

To add one, write a function that takes a `SettingResult` and returns the figure and the advice, or None, and add it to
`CHECKS` under the kind of its warning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relay.comparison.candidates import cores
from relay.comparison.measured import SettingResult
from relay.comparison.needed import LEAST_MINUTES, MARGIN, START_SECONDS
from relay.comparison.request import request
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

Finding = tuple[str, str] | None  # the figure that sets a warning off, and the advice


@dataclass(frozen=True)
class Warned:
    """A warning: its kind (a name of the closed list), the setting, the figure that set it off, and the advice."""

    kind: str
    setting: str
    figure: str
    advice: str


def warnings(settings: Sequence[SettingResult]) -> list[Warned]:
    """All warnings on the settings that have finished, in the order of the list."""
    done = [each for each in settings if each.category == "done" and each.summaries]
    checked = [(kind, each.name, check(each)) for kind, check in CHECKS.items() for each in done]
    return [Warned(kind, name, *finding) for kind, name, finding in checked if finding]


def apart_from_others(each: SettingResult) -> Finding:
    """What the table warns of: a result far from the others', or other code, data or libraries."""
    return (each.row["warning"], "see docs/measurement.md") if each.row["warning"] else None


def too_few_repeats(each: SettingResult) -> Finding:
    """The spread between jobs is not known, or hardly."""
    count = len(each.speeds)
    if not 0 < count < LEAST_REPEATS:
        return None
    what = "no spread is known" if count == 1 else "the interval is 3.6 times as wide as with three"
    return f"{counted(count, 'repeat')}: {what}", f"set repeats: {LEAST_REPEATS} or more"


def noisy_node(each: SettingResult) -> Finding:
    """One repeat is far from the others. It counts all the same."""
    timed = [record for record in each.records if record.speed]
    odd = oddest(each.speeds) if timed else None
    if odd is None or max(odd.ratio, 1 / odd.ratio) <= 1 + APART:
        return None
    record = timed[odd.place]
    hosts = ", ".join(record.summary["hosts"]) if record.summary else ""
    then = (
        "perhaps something slowed those down: measure again"
        if odd.ratio > 1
        else "look at what else ran on that node then, or measure more repeats"
    )
    return (
        f"repeat {record.run.repeat + 1} ran at {odd.ratio:.2f} times the speed of the others, on {hosts}",
        f"it counts in the mean as the others do; {then}",
    )


def loader_bound(each: SettingResult) -> Finding:
    """The processes wait for their data."""
    waited, feeding = each.row["data_wait_fraction"], each.run.feeding
    if waited is None or waited <= WAITING:
        return None
    advice = (
        f"give it more data_workers ({feeding.data_workers} now), or loader: resident, where the dataset fits into "
        "memory"
        if feeding.loader == "dataloader"
        else "use fewer processes on a node, or loader: dataloader with data_workers on a GPU"
    )
    return f"waits for data {percent(waited, 0)} of the measured time", advice


def small_batch(each: SettingResult) -> Finding:
    """The batch is divided among so many processes that each has little to do between two exchanges."""
    run, efficiency = each.run, each.row["scaling_efficiency"]
    share = run.batch.global_batch_size / run.shape.world_size
    if efficiency is None or efficiency >= LEAST_EFFICIENCY or share >= LEAST_PER_PROCESS:
        return None
    return (
        f"{share:.3g} samples a step for each of {run.shape.world_size} processes, and a scaling efficiency of "
        f"{percent(efficiency, 0)}",
        "use fewer devices, or a larger global_batch_size with learning_rate_scaling, if the accuracy stands it",
    )


def shared_cpus(each: SettingResult) -> Finding:
    """More threads than CPUs."""
    for summary in each.summaries:
        threads, cpus = summary.get("threads_on_node", 0), summary.get("cpus_of_node", 0)
        if threads > cpus:
            return (
                f"{threads} threads on {cpus} CPUs ({counted(cores(each.run), 'core')} declared)",
                "ask for as many CPUs as processes × threads, or set fewer threads",
            )
    return None


def idle_gpu(each: SettingResult) -> Finding:
    """The GPUs had little to do."""
    busy = each.row["gpu_utilisation"]
    if busy is None or busy >= BUSY:
        return None
    return (
        f"the GPUs were busy {percent(busy, 0)} of the time",
        "use a larger batch, several processes on a GPU (strategy mps), or CPUs",
    )


def unseen_gpu(each: SettingResult) -> Finding:
    """What the GPUs did was not recorded, though it was to be."""
    if (
        each.row["gpu_utilisation"] is not None
        or each.run.shape.device != "cuda"
        or not each.run.length.monitor_seconds
    ):
        return None
    return (
        "no figure of its GPUs was recorded",
        "install nvidia-ml-py into the jobs' environment; the log of each job says what was missing",
    )


def bound_by_launches(each: SettingResult) -> Finding:
    """A GPU waits for the CPU to start its kernels, one by one."""
    idle = each.row["step_idle_fraction"]
    graphs = [summary for summary in each.summaries if "replayed_steps" in summary]
    if idle is None or idle < IDLE or any(summary["replayed_steps"] for summary in graphs):
        return None
    why = next((summary["not_captured"] for summary in graphs if summary["not_captured"]), "")
    return (
        f"the GPU has nothing to do in {percent(idle, 0)} of a step, until the CPU has started the next kernel",
        "use a larger batch, or compile: true"
        + ("" if graphs else ", or cuda_graph: true")
        + (f"; its steps are not captured as a CUDA graph, because {why}" if why else ""),
    )


def memory_not_used(each: SettingResult) -> Finding:
    """The jobs asked for much more memory than they used."""
    requested_mb = each.job.memory_mb if each.job else None
    if requested_mb is None or not any(summary.get("peak_main_memory_bytes") for summary in each.summaries):
        return None
    needed = request(each.run, each.summaries, each.job).memory_mb
    if needed is None or needed >= USED * requested_mb or requested_mb - needed < UNUSED_MB:
        return None
    return (
        f"{requested_mb:,} MB of each node, of which {needed:,} MB would do, a margin included",
        "set memory_mb_per_node to what the neediest setting needs, for it holds for all",
    )


def time_not_used(each: SettingResult) -> Finding:
    """The jobs asked for much more time than they used."""
    if each.job is None:
        return None
    held = [sum(job["parts"].values()) for summary in each.summaries for job in summary.get("jobs", ())]
    means = (summary["allocated_seconds"] / summary["attempts"] for summary in each.summaries)
    longest = max([*held, *means]) / 60
    if longest >= USED * each.job.minutes or each.job.minutes - longest < UNUSED_MINUTES:
        return None
    wanted = max(LEAST_MINUTES, math.ceil(longest * (1 + MARGIN) + START_SECONDS / 60))
    return (
        f"{each.job.minutes} minutes, of which a job used {number(longest, 2)}, and {wanted} would do",
        "set runtime_minutes to what the longest setting needs, for it holds for all: short jobs start sooner",
    )


CHECKS: Mapping[str, Callable[[SettingResult], Finding]] = {
    "look before you use it": apart_from_others,
    "too few repeats": too_few_repeats,
    "noisy node": noisy_node,
    "loader-bound": loader_bound,
    "batch too small for so many devices": small_batch,
    "oversubscribed CPUs": shared_cpus,
    "idle GPU": idle_gpu,
    "GPUs not looked at": unseen_gpu,
    "bound by launches": bound_by_launches,
    "memory asked for and not used": memory_not_used,
    "time asked for and not used": time_not_used,
}
