"""What a job's processes import: torch, numpy, and what a site's own environment may be without."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import pytest

from chain_runs import Bench
from own_tasks import spec
from relay.run_folder.samples import read

pytest_plugins = ["chain_runs"]

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
    "horovod": "strategies/horovod.py",
    "psutil": "strategies/horovod.py",  # a dependency of Horovod's own
    "pynvml": "process/gpus.py",
}
# In functions that only the driver and the dataset stage call.
DRIVERS = re.compile(r"(spec/(requirements|messages)|datasets/(generate|download|progress))\.py later")


def entries() -> list[Path]:
    """The modules that a job's Python is started with, and those that it loads by name."""
    worker = [SCRIPTS / "relay" / "launch" / f"{name}.py" for name in ("worker", "torchrun")]
    found = sorted(SCRIPTS.glob("relay/*/*.py"))
    roles = [path for path in found if "-m relay.launch.worker" in (path.read_text().split('"""') * 2)[1]]
    assert len(roles) >= 7
    return [*worker, *roles, *chain.from_iterable((SCRIPTS / "relay" / folder).glob("*.py") for folder in NAMED)]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The modules that a file imports, and whether that is at once: not in a function. Types alone are left out."""
    tree = ast.parse(path.read_text())
    for_types = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    left_out = {id(inner) for node in for_types for inner in ast.walk(node)}
    later = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            near = ".".join(path.parent.relative_to(SCRIPTS).parts) + "." if node.level else ""
            names = [near + node.module, *(f"{near}{node.module}.{alias.name}" for alias in node.names)]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module" and node.args:
            names = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
        yield from ((name, id(node) not in later) for name in names)


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


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what `pip install torch torchvision` installs, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    wanted, linked = ["torch", "torchvision"], set()
    while wanted:
        name = wanted.pop()
        linked.add(name)
        held = distribution(name)
        for top in {file.parts[0] for file in held.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(held.locate_file(top))
        needed = [re.split(r"[^A-Za-z0-9_.-]", one)[0] for one in held.requires or [] if "extra ==" not in one]
        wanted += [one for one in needed if one not in linked]
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_run_trains_to_its_end_with_torch_and_torchvision_alone(bench: Bench, bare: Path) -> None:
    """As in an environment that the centres' pages have their users make."""
    lacks = "import importlib.util as u; print([n for n in ('psutil', 'pynvml', 'yaml', 'pydantic') if u.find_spec(n)])"
    assert subprocess.run([bare, "-c", lacks], capture_output=True, text=True, check=True).stdout == "[]\n"
    run = bench.chain("bare", spec("lenet-digits"), loader="dataloader", monitor_seconds=0.1)
    ended = run.segment(python=bare)
    assert ended.status == 0, ended.errors
    assert run.checkpoints()
    (node,) = read(run.work, 1)
    assert node.looks[-1].cpu_seconds > node.looks[0].cpu_seconds > 0
    assert node.looks[-1].resident_bytes > 10**8
