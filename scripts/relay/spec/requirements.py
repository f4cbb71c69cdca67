"""What a strategy needs, and the schedules of pipelines, as plain data that the planner reads without torch.

What a file of a strategy or a task states as a literal is read from its text: nothing is run, and nothing imported.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from relay.base.errors import UserError
from relay.spec.run import Setting
from relay.spec.setting import Backend
from relay.spec.versions import LEAST


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
Need = Callable[[Setting, int, int], str | None]
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

    def slices(self, setting: Setting) -> int:
        """Into how many parts the samples of a batch are divided; 1 where the strategy does not divide them.

        One process with several devices gives each device a part. Otherwise each replica gets one.
        """
        if "samples" not in self.divides:
            return 1
        if self.processes == "one":
            return setting.shape.devices
        world_size = setting.shape.world_size
        return max(1, world_size // self.group_size(world_size, {**self.options, **setting.strategy.options}))

    def allowed(self, option: str) -> tuple[str, ...] | None:
        """The values that an option may have; None where its type alone decides."""
        return tuple(SCHEDULES) if self.pipelined and option == "schedule" else self.choices.get(option)

    def stages_per_process(self, options: Mapping[str, Any]) -> int:
        """Stages of a pipeline that each process has."""
        return SCHEDULES[options["schedule"]].stages if self.pipelined else 1

    def lossy_options(self, options: Mapping[str, Any]) -> dict[str, float]:
        """The options whose value knowingly rounds what is sent, and by how much an update may miss the exact one."""
        return {name: limits[options[name]] for name, limits in self.lossy.items() if options[name] in limits}


# Literals, in the text of a file


def read_source(path: Path) -> str:
    """The text of a Python file of a user's. Raises UserError."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text; save the file in the encoding UTF-8") from None


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a Python file, one object as long as its text stays. Raises UserError."""
    try:
        return _parsed(read_source(path))
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: no valid Python: {error.msg}") from None


@lru_cache(maxsize=512)  # the sources of several strategies are mostly the same
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@lru_cache(maxsize=128)  # each setting's name asks for the defaults of its options
def members(path: Path, tree: ast.Module) -> Mapping[str, Any]:
    """The members of `Requirements(...)`, as plain values, which nobody may change. Raises UserError for no literal."""
    value = _statement(path, tree)
    if not isinstance(value, ast.Call):
        _refuse(path, value, ast.unparse(value))
    if value.args:
        raise UserError(f"{path}: requirements: give every member by its name")
    given = {}
    for keyword in value.keywords:
        try:
            given[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except ValueError:
            shown = ast.unparse(keyword.value)
            _refuse(path, keyword.value, f"{keyword.arg}={shown}" if keyword.arg else f"**{shown}")
    return given


def _statement(path: Path, tree: ast.Module) -> ast.expr:
    """What stands right of `requirements =` in the one class that has it. Raises UserError for none, and for two."""
    stated = [
        (owner, value)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if (value := _value(node, "requirements")) is not None
    ]
    if not stated:
        raise UserError(f"{path}: no literal `requirements = Requirements(...)` in the strategy's class")
    if len(stated) > 1:
        classes = " and ".join(f"{owner.name} (line {value.lineno})" for owner, value in stated)
        raise UserError(
            f"{path}: {classes} have `requirements`; allowed: one class of a file, because the strategy has the file's "
            "name. Move the other one into a file of its own, or what they share into a helper module _*.py"
        )
    return stated[0][1]


def _value(node: ast.stmt, name: str) -> ast.expr | None:
    """What a statement assigns to this name; None for another statement."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return node.value if any(isinstance(each, ast.Name) and each.id == name for each in targets) else None


def _refuse(path: Path, node: ast.expr, text: str) -> NoReturn:
    raise UserError(
        f"{path}:{node.lineno}: requirements: {text!r} has to be computed, and the planner reads the text without "
        "running it; allowed: `requirements = Requirements(...)` with plain numbers, texts, (…), […] and {…}"
    )


def declared_files(path: Path) -> list[Path]:
    """The data files that a strategy's requirements declare, which belong to its code. Needs no pydantic.

    Empty where the requirements cannot be read: the planner has refused them.
    """
    try:
        stated = members(path, parsed(path))
    except UserError:
        return []
    return [path.parent / str(name) for name in stated.get("files", ())]


def texts(node: ast.stmt, name: str) -> list[str]:
    """The texts of the literal tuple or list that a statement gives this name; none for another statement."""
    if (stated := _value(node, name)) is None:
        return []
    try:
        value = ast.literal_eval(stated)
    except ValueError:  # it has to be computed
        return []
    return [each for each in value if isinstance(each, str)] if isinstance(value, tuple | list) else []


def unfit(folder: Path, name: str) -> str:
    """Why a name cannot declare a data file of this folder, as the end of a sentence; '' where it can."""
    if Path(name).is_absolute() or ".." in Path(name).parts or name.endswith(".py"):
        return "is not allowed"
    return "" if (folder / name).is_file() else "is no file"
