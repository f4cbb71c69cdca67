"""What a task's class declares: its attributes and the signatures of its methods, checked before anything runs."""

import ast
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, NoneType
from typing import Any

from relay.base.errors import UserError
from relay.spec import identity
from relay.spec.messages import near, show
from relay.spec.requirements import unfit
from relay.spec.strategy_files import allowed, fits
from relay.task.places import mistake
from relay.task.user import DESCRIBING, Task, options_of

# What a task's methods are called with, besides `self`.
METHODS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(method).parameters)[1:]
    for name, method in vars(Task).items()
    if inspect.isfunction(method)
}
METHODS["collate_fn"] = ("samples",)  # which a task may lack
NEEDED = ("datasets", "model", "optimizer")
NUMBERS = {
    "units_per_sample": int,
    "global_batch_size": int,
    "learning_rate": float,
    "epochs": float,
    "data_version": int,
}
SCHEDULES = {"constant": (), "step": ("every_epochs", "gamma"), "cosine": ()}
METHOD = FunctionType | staticmethod | classmethod
PLAIN = (list, tuple, dict, set, frozenset, range, Path, NoneType)
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def check(own: Task) -> None:
    """Raise UserError, a line for each mistake, with file and line."""
    problems = [*_methods(type(own)), *(_computed(type(own)) or _attributes(own))]
    if problems:
        raise UserError("\n".join(str(mistake(type(own), name, problem)) for name, problem in problems))


def warnings(own: Task) -> Iterator[str]:
    """Options whose names look like misspelt attributes or methods, and methods that nobody calls."""
    referred = _referred_by(type(own))
    for name in options_of(own):
        hint = near(name, [each for each in (*DESCRIBING, *METHODS) if each != name], 0.85)
        if hint and name not in referred:
            yield str(mistake(type(own), name, f"{name} is an option of this task alone; {hint.rstrip()}"))
    yield from uncalled(type(own))


def uncalled(kind: type[Task]) -> Iterator[str]:
    """Public methods of a task's classes that are none of `relay.Task`, and to which nothing in their files refers.

    A misspelt one would be left out without a word, and so would one that another library calls.
    """
    referred = _referred_by(kind)
    for name, value in ((name, value) for owner in _owners(kind) for name, value in vars(owner).items()):
        if not isinstance(value, METHOD) or name.startswith("_") or hasattr(Task, name) or name in referred:
            continue
        meant = near(name, METHODS, 0.7).rstrip() or f"relay.Task has {', '.join(METHODS)}"
        problem = f"{name} is no method of relay.Task, and nothing in the file calls it; {meant}"
        yield str(mistake(kind, name, problem))


def _owners(kind: type[Task]) -> list[type[Task]]:
    return [owner for owner in kind.__mro__ if issubclass(owner, Task) and owner is not Task]


def _referred_by(kind: type[Task]) -> set[str]:
    """The names that the files of a task's classes use."""
    return set[str]().union(*(_referred(Path(file)) for file in {inspect.getfile(owner) for owner in _owners(kind)}))


def _referred(file: Path) -> Iterator[str]:
    """The names that a file uses, also as text: `getattr` takes them so."""
    for node in ast.walk(ast.parse(file.read_text("utf-8-sig"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant):
            yield str(node.value)


def no_options(own: Task) -> tuple[str, ...]:
    """Public values of the class that may be meant as options, and are of no type that an option has."""
    names = [name for owner in reversed(type(own).__mro__) if owner not in (Task, object) for name in vars(owner)]
    public = [name for name in dict.fromkeys(names) if not name.startswith("_") and not hasattr(Task, name)]
    return tuple(name for name in public if isinstance(getattr(own, name), PLAIN))


def _methods(kind: type[Task]) -> Iterator[tuple[str, str]]:
    defined = [name for owner in kind.__mro__ if owner not in (Task, object) for name in vars(owner)]
    for name, arguments in METHODS.items():
        method, wanted = getattr(kind, name), f"{name}({', '.join(('self', *arguments))})"
        if method is None:
            continue
        if name in NEEDED and method is getattr(Task, name):
            others = [each for each in defined if each not in METHODS]
            yield name, f"method {name} is missing; {near(name, others)}allowed: def {wanted}"
        elif not callable(method):
            yield name, f"{name} is {show(method)}; allowed: a method, def {wanted}"
        elif not _takes(kind, name, len(arguments)):
            yield name, f"{name}{inspect.signature(method)} takes other arguments; allowed: def {wanted}"


def _takes(kind: type[Task], name: str, count: int) -> bool:
    """Whether the method can be called with so many arguments."""
    plain = inspect.getattr_static(kind, name)
    bound = isinstance(plain, staticmethod | classmethod)
    try:
        inspect.signature(getattr(kind, name)).bind(*range(count + (not bound)))
    except TypeError:
        return False
    return True


def _computed(kind: type[Task]) -> list[tuple[str, str]]:
    """Attributes that a run sets, and that are properties."""
    names = ("global_batch_size", "learning_rate")
    computed = [name for name in names if isinstance(inspect.getattr_static(kind, name), property)]
    return [(name, f"{name} is a property; allowed: a plain value of the class") for name in computed]


def _attributes(own: Task) -> Iterator[tuple[str, str]]:
    clips = {} if own.clip_grad_norm is None else {"clip_grad_norm": float}
    for name, kind in {**NUMBERS, **clips}.items():
        value = getattr(own, name)
        fitting = type(value) is int if kind is int else type(value) in (int, float) and math.isfinite(value)
        if not fitting or value <= 0:
            words = "a whole number of at least 1" if kind is int else "a number above 0"
            yield name, f"{name} is {show(value)}; allowed: {words}"
    if not isinstance(own.unit, str) or not own.unit.strip():
        yield "unit", f"unit is {show(own.unit)}; allowed: a word in the plural, such as 'images'"
    if own.data is not None and not (isinstance(own.data, str) and re.fullmatch(NAME, own.data)):
        yield "data", f"data is {show(own.data)}; allowed: letters, digits, '.', '_' and '-'"
    generated: Any = own.generated  # a user may have written anything
    if not isinstance(generated, bool):
        yield "generated", f"generated is {show(generated)}; allowed: True, False"
    yield from (("files", problem) for problem in _files(own))
    yield from (("schedule", problem) for problem in _schedule(own.schedule))
    if type(own).scheduler is not Task.scheduler and own.schedule is not Task.schedule:
        yield "schedule", "schedule is given beside a method scheduler; allowed: one of them"
    options = options_of(own)
    small: Any = own.small
    if not isinstance(small, Mapping):
        yield "small", f"small is {show(small)}; allowed: a dict of options, such as {{'width': 8}}"
        return
    for name, value in small.items():
        if name not in options:
            yield (
                "small",
                f"small names {show(name)}; {near(name, options)}allowed: options, {', '.join(options) or 'none'}",
            )
        elif not fits(value, options[name]):
            yield "small", f"small: {name} is {show(value)}; allowed: {allowed(options[name])}"


def _files(own: Task) -> Iterator[str]:
    names: Any = own.files  # a user may have written anything
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
        yield f"files is {show(names)}; allowed: names of files beside this one, such as ('labels.json',)"
        return
    file = Path(inspect.getfile(type(own)))
    for name in names:
        if name not in identity.named_beside(file):
            yield (
                f"files: {show(name)} has to be computed, and the planner reads the text without running it; allowed: "
                "a tuple of plain texts, in a class of this file or of a module beside it"
            )
        elif why := unfit(file.parent, name):
            yield f"files: {show(name)} {why}; allowed: a data file beside this one, or in a folder below"


def _schedule(schedule: Any) -> Iterator[str]:
    kind = schedule.get("kind") if isinstance(schedule, Mapping) else None
    if not isinstance(kind, str) or kind not in SCHEDULES:
        yield f"schedule is {show(schedule)}; allowed: a dict whose 'kind' is one of {', '.join(SCHEDULES)}"
        return
    needed, keys = SCHEDULES[kind], {"kind", "warmup_epochs", *SCHEDULES[kind]}
    for name in needed:
        if name not in schedule:
            yield f"schedule: {name} is missing; kind '{kind}' needs {' and '.join(needed)}"
    for name, value in schedule.items():
        if name not in keys:
            yield f"schedule: {show(name)} is unknown; {near(name, keys)}allowed: {', '.join(sorted(keys))}"
        elif name == "every_epochs" and (type(value) is not int or value < 1):
            yield f"schedule: {name} is {show(value)}; allowed: a whole number of at least 1"
        elif name != "kind" and (type(value) not in (int, float) or not 0 <= value < math.inf):
            yield f"schedule: {name} is {show(value)}; allowed: a number of at least 0"
