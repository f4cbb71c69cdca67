"""The comparison in the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import show_comparison
from results_tree import SCRIPTS, Tree, shown, status

pytest_plugins = ["results_tree"]


def test_table_fits_the_terminal(
    full: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shown(full, capsys, monkeypatch, 60)
    assert max(map(len, out.splitlines())) <= 60
    assert "\x1b" not in out
    wide = "█" * 24
    assert wide not in out
    assert wide in shown(full, capsys, monkeypatch, 160), "where there is room, speeds are drawn as bars"
    flat = " ".join(out.split())
    seen = ("20,500 ±", "1.00 fastest", "unclear", "slower", "struck out", "✗", "✓", "failed", "skipped", "91.0")
    for told in seen:
        assert told in flat
    assert "RuntimeError: <script>alert(1)</script> & [bold]more[/bold]" in flat
    assert out.rstrip().endswith("Report: results/comparison.html")


def test_table_is_what_a_pipe_gets_without_unicode(full: Tree) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    command = [sys.executable, str(SCRIPTS / "show_comparison.py"), "--results", str(full.root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "yes" in done.stdout
    assert "NO" in done.stdout
    assert done.stderr == ""


def test_nothing_to_show_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(show_comparison.main, "--results", str(tmp_path)) == 1
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "comparison.csv").write_text("task,strategy\nlenet,cpu\n")
    assert status(show_comparison.main, "--results", str(tmp_path)) == 1
    assert "is no table of this version" in capsys.readouterr().err
