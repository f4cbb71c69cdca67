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


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_table_fits_the_terminal(
    full: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    out = shown(full, capsys, monkeypatch, columns)
    assert max(map(len, out.splitlines())) <= columns
    assert "\x1b" not in out
    assert ("█" * 24 in out) == (columns == 160), "there is room for the speeds as bars"
    flat = " ".join(out.split())
    for told in (
        "20,500 ±",
        "1.00 fastest",
        "unclear",
        "slower",
        "struck out",
        "✗",
        "✓",
        "failed",
        "skipped",
        "91.0",
    ):
        assert told in flat
    assert "RuntimeError: <script>alert(1)</script> & [bold]more[/bold]" in flat
    assert out.rstrip().endswith("Report: results/comparison.html")


def test_every_sign_of_the_table_is_explained_below_it(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.setting("cpu", [1000.0, 2000.0, 1500.0])
    tree.setting("ddp", [900.0, 1400.0, 2100.0], devices_per_node=2, loader="dataloader")
    tree.setting("ddp", [100.0, 101.0, 99.0], devices_per_node=2)
    assert tree.compare() == 0
    table, _, legend = shown(tree, capsys, monkeypatch).partition("setting: processes, threads of each; ")
    flat = " ".join(legend.split())
    assert flat.startswith(
        "resident: all data lie in memory; dataloader: PyTorch's DataLoader reads them images/s: mean"
    )
    assert "±; -58/+140 %: from 58 % less to 140 % more" in flat
    assert "-58/+140 %" in table
    assert "slower: than the fastest, by more than 3 %; unclear: the 95 % intervals do not tell" in flat
    assert "gate: ✓ trains the same as one process" in flat
    assert "tie: as fast" not in flat
    assert "✗" not in flat


def test_the_recommended_setting_is_marked_and_why_it_is_not_the_fastest_is_told(
    tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.setting("cpu", [1000.0, 1001.0, 999.0])
    tree.setting("ddp", [1360.0, 1361.0, 1359.0], devices_per_node=2)
    assert tree.compare() == 0
    out = shown(tree, capsys, monkeypatch, 120)
    assert out.index("1.00 fastest") < out.index("0.74 slower") < out.index("recommended")
    flat = " ".join(out.split())
    assert "For lenet-digits, cpu (1 proc, 1 thread, resident) is recommended. Ask Slurm for 1 node with 1 CPU" in flat
    assert "Certain for these measurements: " in flat
    assert (
        "More than 1 CPU core does not pay. ddp (2 procs, 1 thread, resident) trains 1.36 times as fast (between 1.36 "
        "and 1.36). So 2 CPU cores gave 68 % of the ideal double speed. Your limit is 70 % (`least_efficiency`), so 1 "
        "CPU core is recommended."
    ) in flat


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
