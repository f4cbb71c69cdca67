"""The page of scripts that are measured as they stand, word for word: its script, its config, its command."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, block, blocks, holds, masked
from relay.planning.comparisons import Comparison
from relay.planning.config_blocks import Read
from relay.spec.script import OF_A_JOB

PAGE = "docs/measure-your-script.md"


def typed(folder: Path, text: str) -> str:
    """What the page's command prints, for a project that is installed elsewhere."""
    words = [word.replace("RELAY/.venv/bin/", f"{Path(sys.executable).parent}/") for word in shlex.split(text)]
    words = [word.replace("RELAY", str(ROOT)) for word in words]
    done = subprocess.run(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_script_on_the_page_is_measured(tmp_path: Path) -> None:
    (script,) = [each.text for each in blocks(PAGE) if each.language == "python"]
    (config,) = [each.text for each in blocks(PAGE) if each.language == "yaml"]
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "script.yaml").write_text(config)
    command = block(PAGE, "RELAY/.venv/bin/snakemake --snakefile").text
    printed = typed(tmp_path, command)
    assert holds(masked(printed), masked(block(PAGE, "strategy").text)[:3]), printed
    results = tmp_path / "results"
    with (results / "comparison.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["status"] for row in rows] == ["done"] * 4
    assert {(row["world_size"], row["data_workers"]) for row in rows} == {(a, b) for a in "12" for b in "01"}
    summaries = [json.loads(path.read_text()) for path in results.glob("runs/*/summary.json")]
    assert len(summaries) == 12
    assert all(1 < summary["train_loss"] < 4 for summary in summaries)
    assert "train.py --batch-size" in (results / "recommendation.sbatch").read_text()
    assert "Nothing to be done" in typed(tmp_path, command), "what is measured stays measured"


def test_the_page_names_every_key_and_every_placeholder_of_a_job() -> None:
    text = (ROOT / PAGE).read_text()
    own = {"command", "name", "read", "links", "stack", "options", "launcher"}
    assert own <= {*Comparison.model_fields}
    assert [name for name in own if f"`{name}`" not in text] == []
    assert [name for name in Read.model_fields if f"`{name}`" not in text and f"{{{name}:" not in text] == []
    assert [name for name in OF_A_JOB if f"`{{{name}}}`" not in text] == []
