"""What a strategy needs, as plain data that the planner reads from the strategy's file without importing it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from relay.errors import UserError

BUILT_IN = Path(__file__).parent / "strategies"
DIVISIBLE = ("samples", "parameters", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a strategy needs, and what it divides among its processes (the gate proves the latter).

    `processes`: "one per device", or "one" (a single process, whatever the devices).
    `devices`: kinds of device it is made for. `twin`: the strategy that stands for it where those are missing.
    `divides`: which of samples, parameters, gradients and optimizer state are split over the processes.
    `options`: its own options with their defaults.
    """

    stack: str = "torch"
    processes: Literal["one per device", "one"] = "one per device"
    least_devices: int = 1
    devices: tuple[str, ...] = ("cpu", "cuda")
    backends: tuple[str, ...] = ("gloo", "nccl")
    divides: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    twin: str | None = None


def read(path: Path) -> Requirements:
    """The literal `requirements = Requirements(...)` in a strategy's file, without running the file.

    Raises UserError where there is none, or where it is no literal: importing torch for each of twenty files would
    cost the planner seconds, and it runs again inside every job.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: no valid Python: {error.msg}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "requirements":
            if not isinstance(node.value, ast.Call):
                break
            try:
                given = {str(k.arg): ast.literal_eval(k.value) for k in node.value.keywords}
            except ValueError:
                break
            unknown = set(given) - {f.name for f in fields(Requirements)}
            if unknown:
                raise UserError(f"{path}: requirements has unknown members {sorted(unknown)}")
            return Requirements(**given)
    raise UserError(f"{path}: no literal `requirements = Requirements(...)` in the strategy's class")


def find(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """Every strategy's file by its name: the project's own, and those of further folders, which shadow none."""
    found: dict[str, Path] = {}
    for folder in (BUILT_IN, *folders):
        if not folder.is_dir():
            raise UserError(f"strategy_folders: '{folder}' is not a folder")
        for path in sorted(folder.glob("[a-z]*.py")):
            if path.stem == "base":
                continue
            if path.stem in found:
                raise UserError(f"strategy_folders: '{path}' has the name of {found[path.stem]}; rename it")
            found[path.stem] = path
    return found
