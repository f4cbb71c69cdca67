"""The columns of `comparison.csv` and `runs.csv`, their types, and how both are written and read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.spec.run import setting_fields

Row = dict[str, Any]

# Speeds are compared in samples per second. They are shown in the task's unit.
SPEED_PARTS = ("", "_low", "_high", "_per_device")


@dataclass(frozen=True)
class Measured:
    """A figure of a run's summary: its type, its meaning, and how the repeats of a setting are combined.

    `pooled` gets the figures of the finished repeats that have one. Without `pooled`, only `runs.csv` has the figure.
    """

    kind: type
    means: str
    pooled: Callable[[Sequence[Any]], Any] | None = None


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def listed(values: Sequence[Any]) -> str:
    """The different values, sorted and joined by semicolons."""
    return "; ".join(sorted(map(str, set(values))))


# To add a figure, add a line here, and write the code that measures it and puts it into the summary under this name.
MEASURED: dict[str, Measured] = {
    "measured_steps": Measured(int, "steps that were timed"),
    "step_seconds_median": Measured(float, "median of a step's seconds"),
    "step_seconds_p95": Measured(float, "95th percentile of a step's seconds"),
    "data_wait_fraction": Measured(float, "part of the measured time spent waiting for data", mean),
    # The parts of a step's time, which add up to 1: of a few steps that were observed, the mean over the processes.
    "step_data_fraction": Measured(float, "part of an observed step spent waiting for data", mean),
    "step_compute_fraction": Measured(float, "part of an observed step spent computing", mean),
    "step_communication_fraction": Measured(
        float, "part of an observed step spent waiting for other processes, or for what is sent", mean
    ),
    "step_optimizer_fraction": Measured(float, "part of an observed step spent updating the parameters", mean),
    "step_no_cpu_fraction": Measured(float, "part of an observed step in which it was ready, and no CPU free", mean),
    "step_idle_fraction": Measured(float, "part of an observed step in which a GPU had nothing to do", mean),
    "observed_step_ratio": Measured(float, "seconds of an observed step over the median of those timed", mean),
    "train_seconds": Measured(float, "time spent on steps that were kept"),
    "allocated_seconds": Measured(float, "wall time of all attempts"),
    "queue_seconds": Measured(float, "wait in the queue, before that time", mean),
    "startup_seconds": Measured(float, "of that time: until a job's processes are started on prepared nodes", mean),
    "loading_seconds": Measured(float, "of that time: imports, joining, data, model and checkpoint", mean),
    "repeated_seconds": Measured(float, "of that time: steps that were done again after a kill", mean),
    "evaluation_seconds": Measured(float, "of that time: evaluations", mean),
    "saving_seconds": Measured(float, "of that time: waits for checkpoints and records", mean),
    "idle_seconds": Measured(float, "of that time: the rest, mostly the ends of jobs", mean),
    "peak_memory_bytes": Measured(int, "peak memory of the process, or device, that used most", max),
    "peak_main_memory_bytes": Measured(
        int, "peak main memory of the process that used most, whatever it computed on", max
    ),
    "disk_bytes_written": Measured(
        int, "bytes that the strategy has written to the nodes' disks, checkpoints apart", max
    ),
    "disk_bytes_read": Measured(int, "bytes that the strategy has read from the nodes' disks", max),
    "cpu_utilisation": Measured(float, "CPU time that the run's processes spent, of what its CPUs had", mean),
    "other_cpus": Measured(float, "CPUs that other programs on the node used meanwhile, where they used most", max),
    "peak_node_memory_bytes": Measured(
        int, "peak memory of all of a node's processes together, data workers included", max
    ),
    "gpu_utilisation": Measured(float, "part of the time in which a GPU computed anything", mean),
    "gpu_sm_activity": Measured(float, "mean part of a GPU's multiprocessors that was busy", mean),
    "gpu_tensor_activity": Measured(float, "mean part of a GPU's tensor cores that was busy", mean),
    "gpu_sm_clock_mhz": Measured(float, "mean clock of a GPU's multiprocessors", mean),
    "peak_gpu_memory_bytes": Measured(int, "peak memory of the GPU that had most in use, as its driver tells", max),
    "gpu_power_watts": Measured(float, "mean power of all GPUs together", mean),
    "gpu_energy_joules": Measured(float, "energy that all GPUs took while the run trained", mean),
    "gpu_energy_joules_per_epoch": Measured(float, "that energy for an epoch", mean),
    "test_accuracy": Measured(float, "accuracy on the test set at the end", mean),
    "test_metric": Measured(float, "the task's first metric on the test set at the end", mean),
    "test_loss": Measured(float, "loss on the test set at the end", mean),
    "train_loss": Measured(float, "training loss of the last step"),
    "device_name": Measured(str, "kind of processor or GPU", listed),
}


def _type(declared: Any) -> type:
    """The type of a declared field's values in a table. Choices and optional values are text."""
    return declared if declared in (int, float, bool) else str


DECLARED: dict[str, type] = {each.name: _type(each.type) for each in setting_fields() if each.about.bears_on}

# One row per strategy and setting, repeats pooled.
COMPARISON: dict[str, type] = {
    "task": str,
    "trained": str,  # the task, with those of its options that differ: only rows with the same one are compared
    "strategy": str,
    "options": str,  # the strategy's options, as "name=value; name=value"
    "task_options": str,  # all of the task's, likewise
    "chosen_options": str,  # those options that differ from the strategy's defaults
    "stack": str,
    "world_size": int,  # processes
    **DECLARED,
    "repeats": int,  # finished ones
    "repeats_planned": int,
    "segments": int,
    "unit": str,  # in which the task's speed is shown
    "units_per_sample": int,
    "metric": str,  # the name of the task's first metric
    # The repeats' geometric mean, its 95 % interval (empty for one repeat), and the speed per device.
    **{f"samples_per_second{part}": float for part in SPEED_PARTS},
    "relative_speed": float,  # divided by that of the fastest equivalent setting that trains the same
    "relative_speed_low": float,
    "relative_speed_high": float,
    "standing": str,  # fastest, tie, slower, unclear (see relay.comparison.statistics)
    "scaling_efficiency": float,
    "scaling": str,  # strong: the same global batch; weak: the same batch per device
    "scaling_baseline_devices": int,
    "scaling_baseline": str,  # the setting that it is compared with
    **{name: measured.kind for name, measured in MEASURED.items() if measured.pooled},
    "max_loss_difference": float,  # the equivalence gate's
    "equivalent": bool,  # empty where it is not known, and where nothing can be proven
    "unproven": str,  # why nothing can be proven of a setting that was measured all the same
    "spot_checks": str,  # of the finished repeats: how many passed, failed or were not checked; or off
    "lossy": str,  # the options that deliberately round what is sent
    "goodput": float,  # of all repeats together
    "status": str,  # done, failed, skipped
    "reason": str,
    "warning": str,  # what to look at before the row's figures are used
    "hosts": str,
    "margin": float,  # of a tie
    "gate": str,
    "setting": str,
}

# One row per run.
RUNS: dict[str, type] = {
    "run": str,
    "setting": str,
    "task": str,
    "strategy": str,
    "repeat": int,
    "seed": int,
    "status": str,
    "reason": str,
    "spot_check": str,  # passed, failed, not checked, off
    "segments": int,
    "attempts": int,
    "samples_per_second": float,
    **{name: measured.kind for name, measured in MEASURED.items()},
    "goodput": float,
    "device": str,
    "hosts": str,
    "versions": str,
    "code": str,
    "strategy_source": str,
    "started_at": str,
}


def speed_in_unit(row: Mapping[str, Any], part: str = "") -> Any:
    """The speed of a row, or a part of it ("_low", …), as a float in the task's unit; None without a speed."""
    speed = row[f"samples_per_second{part}"]
    return None if speed is None or not row["unit"] else speed * row["units_per_sample"]


def unit_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """The unit of a task's speeds. Rows of skipped settings have no unit."""
    return next((str(row["unit"]) for row in rows if row["unit"]), "samples")


def category(row: Mapping[str, Any]) -> str:
    """The category of a row: 'done', 'dropped', 'struck out' (trained, but not equivalent), 'failed' or 'skipped'."""
    if row["status"] == "done" and not (row["equivalent"] or row["unproven"]):
        return "struck out"
    return str(row["status"])


def result(row: Mapping[str, Any]) -> str:
    """What came of a row's setting: its standing or, without one, why it has none."""
    return str(row["standing"] or ("not timed" if category(row) == "done" else category(row)))


def reason_title(row: Mapping[str, Any]) -> str:
    """The heading of a row's reason: its category, or 'note' for a setting that is done."""
    return "note" if category(row) == "done" else category(row)


def eligible(row: Mapping[str, Any]) -> bool:
    """Whether a setting may be compared and recommended: finished and timed, and equivalent, or nobody can prove it."""
    return category(row) == "done" and row.get("samples_per_second") is not None
