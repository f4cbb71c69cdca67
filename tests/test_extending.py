"""The table "to add" of docs/architecture.md: one place is changed, in a copy of the package, and the rest follows.

A task, a site and the pages have their own: test_own_model_page, test_sites,
test_pages, test_docs_commands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gate_runs import FEW_STEPS, Gates
from pages import blocks

ROOT = Path(__file__).resolve().parents[1]
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
        ended = subprocess.run(
            [sys.executable, "-c", row["asked"]], cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(text)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[: len(row["answers"])] == row["answers"]


# The page on writing a strategy: what it shows is taken out of it, and proven


@pytest.mark.slow
def test_the_strategy_on_the_page_is_equivalent(gates: Gates, tmp_path: Path) -> None:
    code, *_ = [block.text for block in blocks("docs/own-strategy.md") if block.language == "python"]
    (tmp_path / "my_ddp.py").write_text(code)
    verdict = gates.verdict("my_ddp", 2, steps=FEW_STEPS, folders=[tmp_path])
    assert verdict["equivalent"], verdict["problems"]
