"""The page of scripts that are measured as they stand: its script, its config with a repeat less, its command."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT, block, blocks, holds, masked
from results_tree import rows

PAGE = "docs/measure-your-script.md"


def typed(folder: Path, text: str) -> str:
    """What the page's command prints, for a project that is installed elsewhere."""
    words = [word.replace("RELAY/.venv/bin/", f"{Path(sys.executable).parent}/") for word in shlex.split(text)]
    words = [word.replace("RELAY", str(ROOT)) for word in words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(words, cwd=folder, env=os.environ | {"COLUMNS": "80"}, **pipes)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_script_on_the_page_is_measured(tmp_path: Path) -> None:
    """Only this types the command of the page for its own script."""
    (script,) = [each.text for each in blocks(PAGE) if each.language == "python"]
    (config,) = [each.text for each in blocks(PAGE) if each.language == "yaml"]
    (tmp_path / "train.py").write_text(script)
    assert "repeats: 3\n" in config
    (tmp_path / "script.yaml").write_text(config.replace("repeats: 3\n", "repeats: 2\n"))
    command = block(PAGE, "RELAY/.venv/bin/snakemake --snakefile").text
    printed = typed(tmp_path, command)
    assert holds(masked(printed), masked(block(PAGE, "strategy").text)[:3]), printed
    results = tmp_path / "results"
    found = rows(results)
    assert [row["status"] for row in found] == ["done"] * 4
    assert {(row["world_size"], row["data_workers"]) for row in found} == {(a, b) for a in "12" for b in "01"}
    summaries = [json.loads(path.read_text()) for path in results.glob("runs/*/summary.json")]
    assert len(summaries) == 8
    assert all(1 < summary["train_loss"] < 4 for summary in summaries)
    assert "train.py --batch-size" in (results / "recommendation.sbatch").read_text()
    assert "Nothing to be done" in typed(tmp_path, command), "what is measured stays measured"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_command_of_which_nothing_is_known_is_timed_and_reported(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("sleep $1\n")
    config = "repeats: 1\ncomparisons:\n  - {command: 'bash run.sh {seconds}', options: {seconds: [0.1, 3]}}\n"
    (tmp_path / "script.yaml").write_text(config)
    printed = typed(tmp_path, block(PAGE, "RELAY/.venv/bin/snakemake --snakefile").text)
    assert "runs/s" in printed
    assert "For your script, run (" in printed
    results = tmp_path / "results"
    found = {row["options"]: row for row in rows(results)}
    fast, slow = found["seconds=0.1"], found["seconds=3"]
    assert float(fast["samples_per_second"]) > 1.5 * float(slow["samples_per_second"])
    assert {row["epochs"] or row["global_batch_size"] for row in found.values()} == {""}, "nobody knows them"
    assert "epoch" not in (results / "recommendation.sbatch").read_text()
    page = (results / "comparison.html").read_text()
    assert not [words for words in ("an epoch", "over epochs", "None") if words in page]
