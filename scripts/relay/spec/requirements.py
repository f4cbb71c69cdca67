"""What a strategy needs, as plain data that the planner reads from the strategy's file without importing it."""

from __future__ import annotations
import __future__

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast, get_args

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.spec.schedules import SCHEDULES
from relay.spec.setting import Backend
from relay.spec.versions import LEAST, PACKAGE, VERSION

if TYPE_CHECKING:
    from relay.spec.run import Setting

BUILT_IN = Path(__file__).parents[1] / "strategies"
NEEDS = BUILT_IN / "_needs.py"
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
    `pipelined`: the option `schedule` names one of `relay.spec.schedules`, which the group's processes follow with as
    many micro-batches as the option `micro_batches` says.
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


def read(path: Path) -> Requirements:
    """The literal `requirements = Requirements(...)` in a strategy's file, without running the file.

    Raises UserError where there is none, or where it is no literal: importing torch for each of twenty files would
    cost the planner seconds, and it runs again inside every job.
    """
    try:
        stated = _stated(path, _members(path, path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    _check(path, stated)
    return stated


def _statement(path: Path, text: str) -> ast.expr:
    """What stands right of `requirements =` in the one class that has it. Raises UserError for none, and for two."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: no valid Python: {error.msg}") from None
    found = [
        (owner, node.value)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and "requirements" in assigned(node)
    ]
    if not found:
        raise UserError(f"{path}: no literal `requirements = Requirements(...)` in the strategy's class")
    if len(found) > 1:
        classes = " and ".join(f"{owner.name} (line {value.lineno})" for owner, value in found)
        raise UserError(
            f"{path}: {classes} have `requirements`; allowed: one class of a file, because the strategy has the file's "
            "name. Move the other one into a file of its own, or what they share into a helper module _*.py"
        )
    return found[0][1]


def assigned(assignment: ast.Assign | ast.AnnAssign) -> set[str]:
    """The names to which a value is assigned."""
    targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@lru_cache(maxsize=128)  # each setting's name asks for the defaults of its options
def _members(path: Path, text: str) -> Mapping[str, Any]:
    """The members of `Requirements(...)`, as plain values, which nobody may change. Raises UserError for no literal."""
    value = _statement(path, text)
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


def _refuse(path: Path, node: ast.expr, text: str) -> NoReturn:
    raise UserError(
        f"{path}:{node.lineno}: requirements: {text!r} has to be computed, and the planner reads the text without "
        "running it; allowed: `requirements = Requirements(...)` with plain numbers, texts, (…), […] and {…}"
    )


def needs(path: Path, stated: Requirements, *, reading: bool = False) -> tuple[Need, ...]:
    """The functions that a strategy's requirements name, taken out of the files' text without importing them.

    Such a function uses nothing but its arguments and Python itself. With `reading`, nothing of another author's is to
    run: their functions are left out. Raises UserError for a name that is no function's.
    """
    own, shared = _functions(path), _functions(NEEDS)
    if missing := [name for name in stated.needs if name not in own | shared]:
        raise UserError(
            f"{path}: requirements.needs: {missing[0]!r} is no function of this file; allowed: one of it, or "
            f"{', '.join(sorted(shared))}"
        )
    left_out = own if reading and path.parent != BUILT_IN else ()
    return tuple(_compiled(path, (own | shared)[name]) for name in stated.needs if name not in left_out)


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions that a file defines at its top, by name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _compiled(path: Path, node: ast.FunctionDef) -> Need:
    """One of them, alone. Raises UserError where already its definition would run something."""
    if node.decorator_list or node.args.defaults or any(node.args.kw_defaults):
        raise UserError(f"{path}:{node.lineno}: {node.name}: a function of `needs` has no decorators and no defaults")
    place: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), str(path), "exec", __future__.annotations.compiler_flag), place)
    return cast("Need", place[node.name])


@cache
def rules() -> frozenset[str]:
    """The names of the workflow's rules, which no strategy may have: both are targets of `snakemake`."""
    files = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    texts = (file.read_text("utf-8") for file in files)
    return frozenset(name for text in texts for name in re.findall(r"(?m)^(?:use rule \w+ as|rule) (\w+)", text))


def chosen(strategy_file: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not the strategy's defaults: what names a setting. All of them where its file has gone."""
    try:
        defaults = read(strategy_file).options
    except UserError:
        defaults = {}
    return {name: value for name, value in options.items() if name not in defaults or defaults[name] != value}


def _stated(path: Path, given: Mapping[str, Any]) -> Requirements:
    """The requirements with these members. Raises UserError for one that is unknown, or of another type."""
    from pydantic import TypeAdapter, ValidationError  # the planner has it, a job's environment need not

    from relay.spec.messages import requirement_lines

    try:
        _strict()(**given)
    except ValidationError as error:
        lines = requirement_lines(error, TypeAdapter[Any](_strict()).json_schema())
        raise UserError("\n".join(f"{path}: {line}" for line in lines)) from None
    return Requirements(**given)


@cache
def _strict() -> Any:
    """The requirements as a class that takes nothing of another type."""
    from pydantic import ConfigDict
    from pydantic.dataclasses import dataclass as checked

    return checked(Requirements, kw_only=True, frozen=True, config=ConfigDict(strict=True, extra="forbid"))


def declared_files(path: Path) -> list[Path]:
    """The data files that a strategy's requirements declare, which belong to its code. Needs no pydantic.

    Empty where the requirements cannot be read: the planner has refused them.
    """
    try:
        stated = _members(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, UserError):
        return []
    return [path.parent / str(name) for name in stated.get("files", ())]


def _check_files(path: Path, stated: Requirements) -> None:
    """Raises UserError for a file that is not there, or not below the strategy's folder, or is Python code."""
    for name in stated.files:
        if why := unfit(path.parent, name):
            raise UserError(
                f"{path}: requirements.files: '{name}' {why}; allowed: a file in {path.parent} or below, relative to "
                "it (helper modules _*.py need not be declared)"
            )


def unfit(folder: Path, name: str) -> str:
    """Why a name cannot declare a data file of this folder, as the end of a sentence; '' where it can."""
    if Path(name).is_absolute() or ".." in Path(name).parts or name.endswith(".py"):
        return "is not allowed"
    return "" if (folder / name).is_file() else "is no file"


def _check(path: Path, stated: Requirements) -> None:
    """Raises UserError for less than one device, a missing file, and an option that is spoken of and not there."""
    _check_files(path, stated)
    if stated.least_devices < 1:
        told = f"{stated.least_devices} is not allowed; allowed: a whole number of at least 1"
        raise UserError(f"{path}: requirements.least_devices: {told}")
    for member, version in (("least_torch", stated.least_torch), ("least_python", stated.least_python)):
        if not re.fullmatch(VERSION, version):
            raise UserError(
                f"{path}: requirements.{member}: '{version}' is not allowed; allowed: a version such as 2.9"
            )
    if unfit := [package for package in stated.packages if not re.fullmatch(PACKAGE, package)]:
        raise UserError(
            f"{path}: requirements.packages: '{unfit[0]}' is not allowed; allowed: a package's name in small letters, "
            "such as horovod, deepspeed>=0.14.5,<0.20 or lightning|pytorch-lightning"
        )
    members = ("choices", "lossy", "gpu_only", "low_precision_only", "cross_entropy_only", "least", "not_in", "part_of")
    named = {name for member in members for name in getattr(stated, member)} | set(stated.divisors)
    named |= {other for other, _ in stated.part_of.values()}
    named |= {stated.group} - {None, "all"} | ({"schedule", "micro_batches"} if stated.pipelined else set())
    if unknown := sorted(str(name) for name in named - set(stated.options)):
        raise UserError(f"{path}: requirements speak of options {unknown}, which `options` lacks")


def find(folders: Iterable[Path] = ()) -> dict[str, Path]:
    """Every strategy's file by its name: the project's own, and those of further folders, which shadow none."""
    found: dict[str, Path] = {}
    for folder in (BUILT_IN, *folders):
        if not folder.is_dir():
            raise UserError(f"strategy_folders: '{folder}' is not a folder")
        for path in sorted(folder.glob("[a-z]*.py")):
            if path.stem == "base":
                continue
            # A strategy's name is a target of the workflow, and a module.
            if not path.stem.isidentifier() or path.stem in rules():
                raise UserError(
                    f"strategy_folders: '{path}': the name is not allowed; allowed: letters, digits and _, no rule's"
                )
            if path.stem in found:
                raise UserError(f"strategy_folders: '{path}' has the name of {found[path.stem]}; rename it")
            found[path.stem] = path
    return found
