"""What was measured of a run in all of its jobs: `summary.json` beside its specification.

The stages that train write it, and the comparison reads it. A figure with a meaning is a column of the tables: it is
declared here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from math import fsum
from typing import Any, Literal

from relay.base.typed import built

FILE = "summary.json"
Pooled = Literal["mean", "max", "listed", ""]


def figure(means: str, unit: str = "", pooled: Pooled = "") -> Any:
    """A figure that a run may lack, and its column. `unit`: 1 for a part of a whole, '' for a count or what the task
    measures. `pooled`: how the repeats' figures become a setting's; '' where only `runs.csv` has it.
    """
    return field(default=None, metadata={"means": means, "unit": unit, "pooled": pooled})


def always(means: str, unit: str = "", pooled: Pooled = "") -> Any:
    """The same for a figure that every run has."""
    return field(metadata={"means": means, "unit": unit, "pooled": pooled})


def _of_a_step(what: str) -> Any:
    """A part of a step: the parts add up to 1. Of a few steps that were observed, the mean over the processes."""
    return figure(f"part of an observed step {what}", "1", "mean")


@dataclass(frozen=True)
class Losses:
    """The curve of the training loss: its points by their steps."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class JobTime:
    """What the time of an attempt's job went to: the seconds of each of `job_times.PARTS`, which add up to it.

    `queued`: the seconds that it waited before it began; None where no scheduler told it. `last` is the last step of
    which the records tell.
    """

    attempt: int = 1
    job: str | None = None
    last: int | None = None
    queued: float | None = None
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """How long the job was held."""
        return fsum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run that has ended. `reason`: why it has `failed`, or what a reader has to know of one that is `done`.

    An evaluation has its `step`, `test_loss`, `test_accuracy` and `test_metrics`. Digests tell the code
    (`strategy_source`, `training_source`) and the `dataset`.
    """

    run: str
    setting: str
    status: Literal["done", "failed"]
    reason: str = ""
    attempts: int
    warmup_steps: int = 0
    samples_per_second: float | None  # None for a run that was too short to be timed
    second_half_ratio: float | None = None  # the speed in the second half of the timed steps over that in the first
    measured_steps: int = always("steps that were timed")
    step_seconds_median: float | None = figure("median of a step's seconds", "s")
    step_seconds_p95: float | None = figure("95th percentile of a step's seconds", "s")
    data_wait_fraction: float | None = figure("part of the measured time spent waiting for data", "1", "mean")
    step_data_fraction: float | None = _of_a_step("spent waiting for data")
    step_compute_fraction: float | None = _of_a_step("spent computing")
    step_communication_fraction: float | None = _of_a_step("spent waiting for other processes, or for what is sent")
    step_optimizer_fraction: float | None = _of_a_step("spent updating the parameters")
    step_no_cpu_fraction: float | None = _of_a_step("in which it was ready, and no CPU free")
    step_idle_fraction: float | None = _of_a_step("in which a GPU had nothing to do")
    observed_step_ratio: float | None = figure(
        "seconds of an observed step over the median of those timed", "1", "mean"
    )
    train_seconds: float | None = always("time spent on steps that were kept", "s")
    allocated_seconds: float = always("wall time of all attempts", "s")
    queue_seconds: float | None = figure("wait in the queue, before that time", "s", "mean")
    startup_seconds: float | None = figure(
        "of that time: until a job's processes are started on prepared nodes", "s", "mean"
    )
    loading_seconds: float | None = figure(
        "of that time: imports, joining, data, model and checkpoint, and what the first evaluation compiles",
        "s",
        "mean",
    )
    repeated_seconds: float | None = figure("of that time: steps that were done again after a kill", "s", "mean")
    evaluation_seconds: float | None = figure(
        "of that time: evaluations, without what the first one compiles", "s", "mean"
    )
    saving_seconds: float | None = figure("of that time: waits for checkpoints and records", "s", "mean")
    idle_seconds: float | None = figure("of that time: the rest, mostly the ends of jobs", "s", "mean")
    peak_memory_bytes: int | None = figure("peak memory of the process, or device, that used most", "bytes", "max")
    peak_main_memory_bytes: int | None = figure(
        "peak main memory of the process that used most, whatever it computed on", "bytes", "max"
    )
    disk_bytes_written: int | None = figure(
        "bytes that the strategy has written to the nodes' disks, checkpoints apart", "bytes", "max"
    )
    disk_bytes_read: int | None = figure("bytes that the strategy has read from the nodes' disks", "bytes", "max")
    cpu_utilisation: float | None = figure("CPU time that the run's processes spent, of what its CPUs had", "1", "mean")
    other_cpus: float | None = figure(
        "CPUs that other programs on the node used meanwhile, where they used most", "", "max"
    )
    peak_node_memory_bytes: int | None = figure(
        "peak memory of all of a node's processes together, data workers included", "bytes", "max"
    )
    gpu_utilisation: float | None = figure("part of the time in which a GPU computed anything", "1", "mean")
    gpu_sm_activity: float | None = figure("mean part of a GPU's multiprocessors that was busy", "1", "mean")
    gpu_tensor_activity: float | None = figure("mean part of a GPU's tensor cores that was busy", "1", "mean")
    gpu_sm_clock_mhz: float | None = figure("mean clock of a GPU's multiprocessors", "MHz", "mean")
    peak_gpu_memory_bytes: int | None = figure(
        "peak memory of the GPU that had most in use, as its driver tells", "bytes", "max"
    )
    gpu_power_watts: float | None = figure("mean power of all GPUs together", "W", "mean")
    gpu_energy_joules: float | None = figure("energy that all GPUs took while the run trained", "J", "mean")
    gpu_energy_joules_per_epoch: float | None = figure("that energy for an epoch", "J", "mean")
    test_accuracy: float | None = figure("accuracy on the test set at the end", "1", "mean")
    test_metric: float | None = figure("the task's first metric on the test set at the end", "", "mean")
    test_loss: float | None = figure("loss on the test set at the end", "", "mean")
    train_loss: float | None = figure("training loss of the last step")
    device_name: str = always("kind of processor or GPU", "", "listed")
    goodput: float | None = None
    steps_reached: int | None = None  # of a command, as it has reported them
    replayed_steps: int | None = None  # as a CUDA graph; None where none was to be
    not_captured: str | None = None  # why none was
    losses: Losses
    evaluations: Sequence[Mapping[str, Any]]
    jobs: Sequence[JobTime] = ()
    hosts: Sequence[str]
    virtual: bool = False
    shares_nodes: bool = False
    cpu_quota: float | None = None
    threads_on_node: int = 0
    cpus_of_node: int = 0
    versions: Mapping[str, str | None]
    dataset: str | None = None
    code: str
    strategy_source: str
    training_source: str | None = None
    generation: str | None = None
    adopted_from: Mapping[str, Any] | None = None
    started_at: str | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: {self.attempts} is not allowed; allowed: 1 or more")
        if self.started_at:
            datetime.fromisoformat(self.started_at)  # raises ValueError, too: days are told by it

    def as_dict(self) -> dict[str, Any]:
        """As the file holds it."""
        return asdict(self)

    @classmethod
    def of(cls, content: Any) -> Summary:
        """Of a file's content. Raises TypeError, KeyError or ValueError where it is none of this version."""
        return built(cls, content, passing_over=True)
