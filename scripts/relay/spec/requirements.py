"""What a strategy needs, and the schedules of pipelines, as plain data that the planner reads without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from relay.spec.setting import Backend
from relay.spec.versions import LEAST

if TYPE_CHECKING:
    from relay.spec.run import Setting


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule:
    """A schedule of torch.distributed.pipelining; `name` is torch's name for it.

    `stages` is the number of pipeline stages in each process.
    `v_shaped` places the first and the last stage on the first process; otherwise a process has every n-th stage.
    `parted` schedules compute the gradients of inputs and of weights separately, the latter while a process would wait.
    `filled` schedules need at least as many micro-batches as pipeline stages.
    `rounds` schedules divide the micro-batches into equal rounds over the processes.
    """

    name: str
    stages: int = 1
    v_shaped: bool = False
    parted: bool = False
    filled: bool = False
    rounds: bool = False

    def problems(self, processes: int, micro_batches: int, compiled: bool, channels_last: bool) -> Iterator[str]:
        """The reasons why torch cannot run this schedule, each a sentence without its subject, the schedule's name."""
        stages = processes * self.stages
        if self.filled and micro_batches < stages:
            yield f"needs at least {stages} micro_batches for its {stages} stages, has {micro_batches}"
        if self.rounds and micro_batches % max(1, micro_batches // processes):
            rounds = micro_batches // processes
            yield f"works in {rounds} equal rounds, has {micro_batches} micro_batches; a multiple of {processes} fits"
        # torch.compile computes both kinds of gradients in one pass. In channels_last, torch 2.13 crashes on CPUs when
        # the gradients of GroupNorm's weights are computed alone.
        if self.parted and (compiled or channels_last):
            yield f"computes gradients in parts, which {'compile' if compiled else 'channels_last'} does not allow"


SCHEDULES = {
    "gpipe": PipelineSchedule(name="GPipe"),
    "1f1b": PipelineSchedule(name="1F1B", filled=True),
    "looped_bfs": PipelineSchedule(name="LoopedBFS", stages=2),
    "interleaved_1f1b": PipelineSchedule(name="Interleaved1F1B", stages=2, rounds=True),
    "interleaved_zero_bubble": PipelineSchedule(name="InterleavedZeroBubble", stages=2, parted=True, rounds=True),
    "zbv_zero_bubble": PipelineSchedule(name="ZBVZeroBubble", stages=2, v_shaped=True, parted=True),
    "dualpipe_v": PipelineSchedule(name="DualPipeV", stages=2, v_shaped=True, parted=True, filled=True),
}


BUILT_IN = Path(__file__).parents[1] / "strategies"
# Takes a setting, the processes of a replica and the stages of a pipeline: what the setting lacks, in a line, or None.
Need = Callable[["Setting", int, int], "str | None"]
NodeNeed = Literal["libaio", "mps", "node_disk"]
Divisible = Literal["samples", "parameters", "gradients", "optimizer"]
DIVISIBLE: tuple[Divisible, ...] = get_args(Divisible)


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a strategy needs, and what it divides among its processes (the gate proves the latter).

    `least_torch` and `least_python`: the oldest versions that it works with, such as "2.9".
    `packages`: what its stack must hold, such as ("deepspeed>=0.14.5,<0.20", "lightning|pytorch-lightning"): versions
    where it knows only these, and names where one of several will do. A cluster's own packages may be others.
    `processes`: "one per device", "several per device" (as processes_per_device says), or "one" (a single process,
    whatever the devices).
    `devices`: kinds of device it is made for. `twin`: the strategy that stands for it where those are missing.
    `divides`: which of samples, parameters, gradients and optimizer state are split over the processes.
    `options`: its own options with their defaults.

    `group`: which processes hold one replica together. None: each holds one of its own; "all": all of the run; else
    the option that says how many neighbouring ranks do.
    `pipelined`: the option `schedule` names one of `SCHEDULES`, which the group's processes follow with as many
    micro-batches as the option `micro_batches` says.
    `needs`: names of functions that say what the task or the shape lacks: of the strategy's own file, or of
    `strategies/_needs.py`. Each takes the setting, the processes of a replica, and the pipeline's stages.
    `node_needs`: what each node must have besides the stack, by kind of device: "mps" (NVIDIA's Multi-Process Service),
    "libaio" (library and header), "node_disk" (a disk of the node's own). On a cluster the preflight stops the
    strategy's runs where a node lacks it.
    `choices`: the values allowed for an option. `lossy`: those that knowingly round what is sent, with the part of its
    length by which an update may then miss the exact one. `gpu_only`: those that need GPUs. `low_precision_only`: those
    for bf16 and fp16.
    `cross_entropy_only`: those for tasks with such a loss. `divisors`: options whose value divides the processes, into
    groups of two or more.
    `least`: of options that are numbers, where it is not 1 (0 for those whose default is 0). `not_in`: for an option's
    value, the precisions in which it cannot be. `part_of`: options that mean nothing but beside one value of another
    option, such as `{"rank": ("compression", "low_rank")}`. `compiles`: whether torch.compile can be had with it.
    `files`: data files that it reads, relative to its own file, such as `("rates.json",)`. They count as its code: they
    are part of its identity, and lie beside it in the run's snapshot.
    `copies_model`: a process with several devices computes its slice in as many chunks, on copies of its model. Each is
    normalised by its own statistics, and only the first one's stay.
    `whole_batches`: options whose value, the number of parts in which a replica's slice is worked through, must divide
    that slice.
    """

    stack: str = "torch"
    least_torch: str = LEAST["torch"]
    least_python: str = LEAST["python"]
    packages: tuple[str, ...] = ()
    processes: Literal["one per device", "several per device", "one"] = "one per device"
    least_devices: int = 1
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
    backends: tuple[Backend, ...] = ("gloo", "nccl")
    divides: tuple[Divisible, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    twin: str | None = None
    group: str | None = None
    pipelined: bool = False
    needs: tuple[str, ...] = ()
    node_needs: Mapping[Literal["cpu", "cuda"], tuple[NodeNeed, ...]] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lossy: Mapping[str, Mapping[Any, float]] = field(default_factory=dict)
    gpu_only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    low_precision_only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    cross_entropy_only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    divisors: tuple[str, ...] = ()
    least: Mapping[str, float] = field(default_factory=dict)
    not_in: Mapping[str, Mapping[Any, tuple[str, ...]]] = field(default_factory=dict)
    part_of: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    compiles: bool = True
    files: tuple[str, ...] = ()
    copies_model: bool = False
    whole_batches: tuple[str, ...] = ("accumulation", "micro_batches")

    @property
    def staged(self) -> bool:
        """Whether the processes of a replica hold stages of the model."""
        return "layers" in self.needs

    def group_size(self, world_size: int, options: Mapping[str, Any]) -> int:
        """How many processes hold one replica together."""
        if self.group is None:
            return 1
        return world_size if self.group == "all" else int(options[self.group])

    def allowed(self, option: str) -> tuple[str, ...] | None:
        """The values that an option may have; None where its type alone decides."""
        return tuple(SCHEDULES) if self.pipelined and option == "schedule" else self.choices.get(option)

    def stages_per_process(self, options: Mapping[str, Any]) -> int:
        """Stages of a pipeline that each process has."""
        return SCHEDULES[options["schedule"]].stages if self.pipelined else 1

    def lossy_options(self, options: Mapping[str, Any]) -> dict[str, float]:
        """The options whose value knowingly rounds what is sent, and by how much an update may miss the exact one."""
        return {name: limits[options[name]] for name, limits in self.lossy.items() if options[name] in limits}
