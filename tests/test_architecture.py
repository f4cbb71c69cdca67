"""What docs/architecture.md says: who imports what, how little a job imports, and where something is added."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from pages import ROOT, blocks
from relay.spec.identity import module_sources

SCRIPTS = ROOT / "scripts"
PACKAGE = SCRIPTS / "relay"
ALONE = "chain"  # also copied beside a script, under another name: it names its own files by relative imports


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """What a file imports, beginning with its dots where that is relative; and whether at once: not in a function."""
    text = path.read_text()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            around = "." * getattr(node, "level", 0) + (f"{module}." if module else "")
            yield from ((around + each.name, node in tree.body) for each in node.names)
    yield from ((module, False) for module in re.findall(r'import_module\("([\w.]+)"', text))


# Downwards


def layers() -> list[str]:
    """The packages of the table, the topmost first."""
    return re.findall(r"(?m)^\| [a-z]+ \| `([a-z_]+)` \|", (ROOT / "docs/architecture.md").read_text())


def upward(order: list[str], path: Path) -> list[str]:
    """The imports of a file that lead above its own package, or have a form that is not for it."""
    own, names = path.relative_to(PACKAGE).parts[0], [name for name, _ in imports(path)]
    unfit = [name for name in names if name.startswith(("..", "relay") if own == ALONE else ".")]
    inner = [name.split(".")[1] for name in names if name.startswith("relay.")]
    return [*unfit, *(name for name in inner if order.index(name) < order.index(own))]


def test_the_table_names_every_package_once() -> None:
    assert sorted(layers()) == sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_")


def test_every_import_runs_downwards() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE]
    found = {str(path): upward(layers(), path) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


# What a job's processes import: torch, numpy, and what a site's own environment may be without

# Loaded by their names, beside what these import.
NAMED = ("strategies", "tasks")
ALWAYS = {"torch", "numpy", "relay", ""}  # the last one is a relative import's
# The docs name each, and preflight looks for it where a run needs it; without pynvml, figures are left out.
WHERE_NEEDED = {
    "torchvision": ("datasets/vision.py", "preflight/devices.py"),
    "lightning": "strategies/_lightning_library.py",
    "pytorch_lightning": "strategies/_lightning_library.py",
    "deepspeed": "strategies/",
    "horovod": ("strategies/horovod.py", "process/meeting.py"),
    "psutil": "strategies/horovod.py",  # a dependency of Horovod's own
    "pynvml": "process/gpus.py",
    "requests": "datasets/download.py",
    "urllib3": "datasets/download.py",
}
# In functions that only the driver and the dataset stage call. Such a function alone imports what downloads.
DRIVERS = ("spec/strategy_files.py", "spec/messages.py", "datasets/generate.py")


def entries() -> list[Path]:
    """The modules that a job's Python is started with, and those that it loads by name."""
    worker = [SCRIPTS / "relay" / "launch" / f"{name}.py" for name in ("worker", "torchrun")]
    found = sorted(SCRIPTS.glob("relay/*/*.py"))
    roles = [path for path in found if "-m relay.launch.worker" in (path.read_text().split('"""') * 2)[1]]
    assert len(roles) >= 7
    return [*worker, *roles, *chain.from_iterable((SCRIPTS / "relay" / folder).glob("*.py") for folder in NAMED)]


def test_a_job_imports_little_beside_torch() -> None:
    """Every import is followed, from every program of a job and every file that it loads by its name."""
    files = module_sources(ROOT, *(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in entries()))
    assert len(files) > 100  # it was followed
    for path in files:
        place = str(path.relative_to(PACKAGE))
        for name, at_once in imports(path):
            top = name.split(".")[0]
            assert not at_once or "datasets.download" not in name, place
            if top not in sys.stdlib_module_names | ALWAYS and (at_once or place not in DRIVERS):
                assert place.startswith(WHERE_NEEDED.get(top, ())), f"{place} imports {name}"


# The table "to add": one place is changed, in a copy of the package, and the rest follows
#
# A task, a site and the pages have their own: test_own_model_page, test_sites, test_pages, test_docs_commands.


ADDED = yaml.safe_load((ROOT / "tests/extending.yaml").read_text())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "workflow", "envs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("row", ADDED, ids=lambda row: row["what"])
def test_one_place_is_changed(copy: Path, row: dict[str, Any]) -> None:
    path = copy / "scripts/relay" / row["file"]
    text = path.read_text()
    assert f"| {row['what'].partition(' (')[0]} | " in (ROOT / "docs/architecture.md").read_text()
    at = text.index(f"{row['before']}\n") if row["before"] else len(text)
    path.write_text(f"{text[:at]}{row['added']}\n{text[at:]}")
    environment = os.environ | {"PYTHONPATH": f"{copy / 'scripts'}:{ROOT / 'tests/support'}"}
    try:
        program = [sys.executable, "-c", row["asked"]]
        ended = subprocess.run(program, cwd=copy, env=environment, capture_output=True, text=True)
    finally:
        path.write_text(text)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[: len(row["answers"])] == row["answers"]


# The page on writing a strategy: what it shows is taken out of it, and proven


@pytest.mark.slow
def test_the_strategy_on_the_page_is_equivalent(gates: Any, tmp_path: Path) -> None:
    from gate_runs import FEW_STEPS  # with torch

    code, *_ = [block.text for block in blocks("docs/own-strategy.md") if block.language == "python"]
    (tmp_path / "my_ddp.py").write_text(code)
    verdict = gates.verdict("my_ddp", 2, steps=FEW_STEPS, folders=[tmp_path])
    assert verdict["equivalent"], verdict["problems"]
