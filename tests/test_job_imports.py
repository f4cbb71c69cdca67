"""What a job's processes import: torch, numpy, and what a site's own environment may be without."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
# Loaded by their names, beside what these import.
NAMED = ("strategies", "tasks")
ALWAYS = {"torch", "numpy"}
# The docs name each, and preflight looks for it where a run needs it; without pynvml, figures are left out.
WHERE_NEEDED = {
    "torchvision": ("datasets/vision.py", "preflight/devices.py"),
    "lightning": "strategies/_lightning_library.py",
    "pytorch_lightning": "strategies/_lightning_library.py",
    "deepspeed": "strategies/",
    "horovod": ("strategies/horovod.py", "process/meeting.py"),
    "psutil": "strategies/horovod.py",  # a dependency of Horovod's own
    "pynvml": "process/gpus.py",
}
# In functions that only the driver and the dataset stage call.
DRIVERS = re.compile(r"(spec/(strategy_files|messages)|datasets/(generate|download))\.py later")


def entries() -> list[Path]:
    """The modules that a job's Python is started with, and those that it loads by name."""
    worker = [SCRIPTS / "relay" / "launch" / f"{name}.py" for name in ("worker", "torchrun")]
    found = sorted(SCRIPTS.glob("relay/*/*.py"))
    roles = [path for path in found if "-m relay.launch.worker" in (path.read_text().split('"""') * 2)[1]]
    assert len(roles) >= 7
    return [*worker, *roles, *chain.from_iterable((SCRIPTS / "relay" / folder).glob("*.py") for folder in NAMED)]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The modules that a file imports, and whether that is at once: not in a function. Types alone are left out."""
    left_out = r'(?m)(?s:""".*?""")|^if TYPE_CHECKING:\n(?:(?:    .*)?\n)+'
    text = re.sub(left_out, "", path.read_text())
    for indent, module in re.findall(r"(?m)^( *)import ([\w.]+)", text):
        yield module, not indent
    for indent, near, module, names in re.findall(r"(?m)^( *)from (\.?)([\w.]*) import (\([^)]*\)|.+)", text):
        package = ".".join(path.parent.relative_to(SCRIPTS).parts) + "." if near else ""
        yield package + module, not indent
        for name in re.findall(r"\w+", names):
            yield f"{package}{module}.{name}", not indent
    for module in re.findall(r'import_module\("([\w.]+)"', text):
        yield module, False


def test_a_job_imports_little_beside_torch() -> None:
    """Every import is followed, from every program of a job and every file that it loads by its name."""
    found: dict[str, set[str]] = {}
    queue, known = [(path, True) for path in entries()], set()
    while queue:
        path, reached = queue.pop()
        if (path, reached) in known:
            continue
        known.add((path, reached))
        for name, at_once in imports(path):
            top = name.split(".")[0]
            place = SCRIPTS.joinpath(*name.split("."))
            inner = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
            queue += [(file, reached and at_once) for file in inner]
            if top != "relay" and top not in sys.stdlib_module_names:
                later = "" if reached and at_once else " later"
                found.setdefault(top, set()).add(f"{path.relative_to(SCRIPTS / 'relay')}{later}")
    assert len(known) > 100  # it was followed
    assert found.keys() >= ALWAYS
    for name, places in found.items():
        others = {place for place in places if not DRIVERS.fullmatch(place)}
        if name not in ALWAYS and others:
            assert name in WHERE_NEEDED, f"{name} is imported by {others}"
            assert all(place.startswith(WHERE_NEEDED[name]) for place in others), f"{name}: {others}"
