"""An experiment set, shrunk to this machine and run as its page says: long."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from snakemake_calls import called
from test_experiment_sets import NOT_HERE, SETS
from test_workflow import ROOT, SNAKEMAKE

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def test_it_runs_to_its_report(tmp_path: Path) -> None:
    """Only this runs a shrunk set: all settings are proven and timed, but those that this machine cannot have."""
    shrunk = ["--directory", str(tmp_path), "--configfile", str(SETS["ddp-starters"]), "--config", "shrink=true"]
    environment = {key: value for key, value in os.environ.items() if key != "SNAKEMAKE_PROFILE"} | {"COLUMNS": "80"}
    status, printed = called([*SNAKEMAKE, *shrunk], ROOT, environment, timeout_seconds=1700)
    assert status == 0, printed
    with (tmp_path / "results" / "comparison.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    finished = [row for row in rows if row["status"] == "done"]
    assert len(finished) >= 2
    assert [(row["strategy"], row["reason"]) for row in finished if row["equivalent"] != "true"] == []
    assert [row["strategy"] for row in finished if not row["samples_per_second"]] == []
    others = [row["reason"] for row in rows if row["status"] != "done"]
    assert [reason for reason in others if not any(known in reason for known in NOT_HERE)] == []
    assert "shrunk to a laptop" in (tmp_path / "results" / "comparison.html").read_text()
