"""The files of strategies: where they are, and what they state that they need. Only the planner checks it.

Also which values options may have: a strategy's, by what its file states, and a task's.
"""

import __future__

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, cast

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.base.typed import built
from relay.spec.messages import near, show, unknown
from relay.spec.requirements import BUILT_IN, Need, Requirements, members, parsed, unfit
from relay.spec.versions import PACKAGE, VERSION

NEEDS = BUILT_IN / "_needs.py"


def find(folders: Iterable[Path] = ()) -> dict[str, Path]:
    """Every strategy's file by its name: the project's own, and those of further folders, which shadow none."""
    files: dict[str, Path] = {}
    for folder in (BUILT_IN, *folders):
        if not folder.is_dir():
            raise UserError(f"config: strategy_folders: '{folder}' is no folder; allowed: a folder's path")
        for path in sorted(folder.glob("[A-Za-z]*.py")):
            if path.stem == "base" or (path.stem[0].isupper() and not path.stem.isidentifier()):
                continue
            # A strategy's name is a target of the workflow, and a module.
            if not path.stem.isidentifier() or path.stem in rules():
                raise UserError(
                    f"strategy_folders: '{path}': the name is not allowed; allowed: letters, digits and _, no rule's"
                )
            if path.stem in files:
                raise UserError(f"strategy_folders: '{path}' has the name of {files[path.stem]}; rename it")
            files[path.stem] = path
    return files


@cache
def rules() -> frozenset[str]:
    """The names of the workflow's rules, which no strategy may have: both are targets of `snakemake`."""
    files = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    texts = (file.read_text("utf-8") for file in files)
    return frozenset(name for text in texts for name in re.findall(r"(?m)^(?:use rule \w+ as|rule) (\w+)", text))


def read(path: Path) -> Requirements:
    """The literal `requirements = Requirements(...)` in a strategy's file, without running the file.

    Raises UserError where there is none, or where it is no literal: importing torch for each of twenty files would
    cost the planner seconds, and it runs again inside every job.
    """
    given, names = members(path, parsed(path)), [each.name for each in fields(Requirements)]
    for name in given:
        if name not in names:
            raise UserError(f"{path}: requirements: " + unknown(f"'{name}' is unknown", name, names))
    try:
        stated = built(Requirements, given)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: requirements.{error.args[0]}") from None
    for problem in _problems(path.parent, stated):
        raise UserError(f"{path}: requirements{problem}")
    return stated


def _problems(folder: Path, stated: Requirements) -> Iterator[str]:
    """What is wrong with requirements of a file in this folder, as it goes on after `requirements`."""
    for name in stated.files:
        if why := unfit(folder, name):
            yield (
                f".files: '{name}' {why}; allowed: a file in {folder} or below, relative to it (helper modules _*.py "
                "need not be declared)"
            )
    if stated.least_devices < 1:
        yield f".least_devices: {stated.least_devices} is not allowed; allowed: a whole number of at least 1"
    for member, version in (("least_torch", stated.least_torch), ("least_python", stated.least_python)):
        if not re.fullmatch(VERSION, version):
            yield f".{member}: '{version}' is not allowed; allowed: a version such as 2.9"
    for package in stated.packages:
        if not re.fullmatch(PACKAGE, package):
            yield (
                f".packages: '{package}' is not allowed; allowed: a package's name in small letters, such as horovod, "
                "deepspeed>=0.14.5,<0.20 or lightning|pytorch-lightning"
            )
    lists = ("choices", "lossy", "gpu_only", "low_precision_only", "cross_entropy_only", "least", "not_in", "part_of")
    named = {name for member in lists for name in getattr(stated, member)} | set(stated.divisors)
    named |= {other for other, _ in stated.part_of.values()}
    named |= {stated.group} - {None, "all"} | ({"schedule", "micro_batches"} if stated.pipelined else set())
    if lacking := sorted(str(name) for name in named - set(stated.options)):
        yield f" speak of options {lacking}, which `options` lacks"


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
    return {node.name: node for node in parsed(path).body if isinstance(node, ast.FunctionDef)}


def _compiled(path: Path, node: ast.FunctionDef) -> Need:
    """One of them, alone. Raises UserError where already its definition would run something."""
    if node.decorator_list or node.args.defaults or any(node.args.kw_defaults):
        raise UserError(f"{path}:{node.lineno}: {node.name}: a function of `needs` has no decorators and no defaults")
    place: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), str(path), "exec", __future__.annotations.compiler_flag), place)
    return cast("Need", place[node.name])


def chosen(strategy_file: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not the strategy's defaults: what names a setting. All of them where its file has gone."""
    try:
        defaults = read(strategy_file).options
    except UserError:
        defaults = {}
    return {name: value for name, value in options.items() if name not in defaults or defaults[name] != value}


# Options


def wrong_options(given: Mapping[str, Sequence[Any]], stated: Requirements, owner: str) -> Iterator[str]:
    """A line for each option that its owner does not have, and for each value that does not fit."""
    for name, values in given.items():
        if name not in stated.options:
            text = f"{name}: {show(values[0])} is not allowed, {owner} has no such option"
            yield unknown(text, name, stated.options)
            continue
        default, least = stated.options[name], stated.least.get(name)
        choices = stated.allowed(name) or ()
        words = ", ".join(map(str, choices)) or f"{allowed(default, least)}, such as {show(default)}"
        for value in values:
            if not (value in choices if choices else fits(value, default, least)):
                yield f"{name}: {show(value)} is not allowed; {near(value, choices)}allowed: {words}"


def checked_options(given: Mapping[str, Any], defaults: Mapping[str, Any], task: str) -> dict[str, Any]:
    """All of a task's options, as `typed` has them. Raises UserError with a line for each that is wrong."""
    wrong = wrong_options({name: [value] for name, value in given.items()}, Requirements(options=defaults), task)
    if lines := [f"config: task_options.{line}" for line in wrong]:
        raise UserError("\n".join(lines))
    return typed(given, defaults)


def allowed(default: Any, least: float | None = None) -> str:
    """In words, the values that may stand in the default's place; numbers are at least `least`."""
    if type(default) is int:
        return f"a whole number of at least {_least(default, least):g}"
    number = "a number" if least is None else f"a number of at least {least:g}"
    kinds = {bool: "true or false", float: number, str: "text"}
    return kinds.get(type(default), "a single value")


def fits(value: Any, default: Any, least: float | None = None) -> bool:
    """Whether a value may stand in the default's place."""
    if default is None:
        return True
    if isinstance(default, float):
        return type(value) in (int, float) and math.isfinite(value) and (least is None or value >= least)
    if type(default) is int:
        return type(value) is int and value >= _least(default, least)
    return type(value) is type(default)


def _least(default: int, least: float | None) -> float:
    return min(1, default) if least is None else least


def typed(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All options, with the given values in their defaults' places; a whole number for a float becomes one."""
    fitted = {k: float(v) if isinstance(defaults[k], float) else v for k, v in given.items()}
    return {**defaults, **fitted}
