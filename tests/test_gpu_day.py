"""One command for a node with a GPU and no network: what is cut, or fails, is told, and the archive is always whole."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONG = ["import time; print('begun', flush=True); time.sleep(60)"]


@pytest.fixture
def gpu_day(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with little patience."""
    spec = importlib.util.spec_from_file_location("gpu_day", ROOT / "scripts/gpu_day.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_day", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)
    return module


@pytest.mark.slow
def test_a_part_that_fails_or_is_cut_is_told_and_the_archive_is_whole(gpu_day: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    nothing = dict.fromkeys(("wheels", "nccl", "pages"))
    given = argparse.Namespace(seconds=60, output=tmp_path / "out/day.tar.gz", python=sys.executable, **nothing)
    made = gpu_day.Day(given, tmp_path / "work")
    python = [sys.executable, "-c"]
    made.parts = [
        gpu_day.Part("fine", [*python, "print('all is well')"]),
        gpu_day.Part("wrong | here", [*python, "raise SystemExit('no GPU')"]),
        gpu_day.Part("long", [*python, *LONG], seconds=2.5),
        gpu_day.Part("missing", without="no pages"),
    ]
    (made.work / "results/datasets").mkdir(parents=True)
    (made.work / "results/datasets/large.json").write_text("{}")
    (made.work / "results/long.log").write_text("first\n" + "x" * gpu_day.MOST_FILE_BYTES + "last\n")
    for part in made.parts:
        made.run(part, time.monotonic() + 30)
    made.archive()
    with tarfile.open(tmp_path / "out/day.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert names[0] == "gpu-day/summary.md"
    assert not any("datasets" in name for name in names)
    rows = (tmp_path / "gpu-day/summary.md").read_text().splitlines()[-4:]
    assert [row.split(" | ")[1] for row in rows[:1]] == ["worked"]
    assert rows[1].endswith("| no GPU |")
    assert "failed, status 1" in rows[1]
    assert "| cut |" in rows[2]
    assert rows[2].endswith("| begun |")
    assert "left out: no pages" in rows[3]
    kept = (tmp_path / "gpu-day/results/long.log").read_text()
    assert kept.endswith("last\n")
    assert "first" not in kept
