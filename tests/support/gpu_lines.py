"""Which lines of the package only a GPU reaches, and which of them no test has walked.

    GPU_LINES=/tmp/lines pytest -p gpu_lines tests/test_pretended_gpu.py …
    GPU_LINES=/tmp/lines python tests/support/gpu_lines.py

As a plugin of pytest it notes the lines that this process and the forks of `preloaded` walk, as a file for each.
As a program it prints the others, by function. A line is a GPU's where it stands under a condition that asks for one,
calls `torch.cuda`, or is part of a file that is for GPUs alone.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "scripts" / "relay"
FOLDER = os.environ.get("GPU_LINES")
WHOLE = ("process/gpus.py", "training/observed_gpu.py", "strategies/data_parallel.py", "strategies/single_gpu.py",
    "strategies/model_parallel_in_process.py", "preflight/checks_gpu.py")  # fmt: skip
ASKS = ("is_gpu(", "'cuda'", "is_cuda", "cuda.is_available", "cuda.is_initialized", "on_gpu", "_on_gpus")
Place = tuple[str, int]


def asks_for_gpu(test: ast.expr) -> bool:
    """Whether a condition asks for a GPU."""
    return any(word in ast.unparse(test) for word in ASKS)


def refuses(test: ast.expr) -> bool:
    """Whether such a condition is true without a GPU."""
    text = ast.unparse(test)
    return text.startswith("not ") or "!= 'cuda'" in text


def of_block(block: list[ast.stmt], gpus: bool) -> Iterator[ast.stmt]:
    """The statements of a block that only a GPU reaches; with `gpus`, all of them."""
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from of_block(statement.body, gpus)
            continue
        if gpus or "torch.cuda." in ast.unparse(statement).split("\n")[0]:
            yield statement
        asks = isinstance(statement, ast.If) and asks_for_gpu(statement.test)
        turned = asks and refuses(statement.test)  # type: ignore[attr-defined]
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, [])
            yield from of_block(inner, gpus or (asks and (name == "body") is not turned))
        for handler in getattr(statement, "handlers", []):
            yield from of_block(handler.body, gpus)
        gpus = gpus or (turned and isinstance(statement.body[-1], ast.Return))  # type: ignore[attr-defined]


def candidates() -> dict[Place, str]:
    """The first line of each statement that only a GPU reaches, with its function."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree, name = ast.parse(path.read_text()), str(path.relative_to(PACKAGE))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions:
            for statement in of_block(function.body, name in WHOLE):
                text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                if not text and not isinstance(statement, ast.Import | ast.ImportFrom):
                    found[name, statement.lineno] = function.name
    return found


def begin() -> None:
    """Note every line of the package that is walked from now on; at once, for processes may end without a word."""
    walked: dict[int, set[Place]] = {}

    def note(frame: Any, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        where = path.rpartition("/relay/")[2]
        place = (where, frame.f_lineno)
        mine = walked.setdefault(os.getpid(), set())
        if event == "line" and place not in mine:
            mine.add(place)
            with (Path(FOLDER or "") / str(os.getpid())).open("a") as stream:
                stream.write(f"{where}:{frame.f_lineno}\n")
        return note

    wanted = {where for where, _ in candidates()}

    def enter(frame: Any, _event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        return note if "/relay/" in path and path.rpartition("/relay/")[2] in wanted else None

    Path(FOLDER or "").mkdir(parents=True, exist_ok=True)
    threading.settrace(enter)
    sys.settrace(enter)


def main() -> None:
    """Print the lines that were not walked."""
    seen = {line for path in Path(FOLDER or "").iterdir() for line in path.read_text().splitlines()}
    known = candidates()
    missed = {place: function for place, function in known.items() if f"{place[0]}:{place[1]}" not in seen}
    print(f"{len(known)} statements are a GPU's, {len(missed)} of them no test has walked")
    by: dict[tuple[str, str], list[int]] = {}
    for (where, line), function in missed.items():
        by.setdefault((where, function), []).append(line)
    for (where, function), lines in sorted(by.items()):
        print(f"{where}  {function}: {', '.join(map(str, sorted(set(lines))))}")


if __name__ == "__main__":
    main()
elif FOLDER:
    begin()
