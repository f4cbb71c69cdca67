"""What a file of a strategy or a task states as a literal, read from its text: nothing is run, and nothing imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from relay.base.errors import UserError


@lru_cache(maxsize=128)  # each setting's name asks for the defaults of its options
def members(path: Path, text: str) -> Mapping[str, Any]:
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


def _statement(path: Path, text: str) -> ast.expr:
    """What stands right of `requirements =` in the one class that has it. Raises UserError for none, and for two."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: no valid Python: {error.msg}") from None
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
        stated = members(path, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, UserError):
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
