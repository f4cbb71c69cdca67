"""The recommended script has what every job of the site has: its reservation, and its mail."""

from __future__ import annotations

from pathlib import Path

import pytest

from plans import ROOT
from relay.planning.config import load
from relay.planning.planner import plan
from relay.spec.site import load_site
from results_tree import Tree
from slurm_runs import site_file

pytest_plugins = ["plans", "results_tree"]

DECLARED = {"reservation": "course", "mail_type": ["END", "fail"], "mail_user": "me@example.org"}
FLAGS = ["--reservation=course", "--mail-type=END,FAIL", "--mail-user=me@example.org"]


def test_the_plan_tells_the_comparison_what_every_job_of_the_site_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    site = load_site(str(site_file(tmp_path, **DECLARED)), ROOT)
    found = plan(load({"repeats": 1, "device": "cpu", "comparisons": [{"strategy": "cpu"}]}), root=ROOT, site=site)
    assert found.to_json()["answer"]["site_flags"] == FLAGS
    extra = found.resources(found.runs[0])["slurm_extra"].split()
    assert [flag for flag in extra if flag in FLAGS] == FLAGS  # as its own jobs have them


def test_the_recommended_block_asks_for_them(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0, 999.0])
    tree.rules = {"site_flags": FLAGS}
    assert tree.compare() == 0
    lines = (tree.root / "recommendation.sbatch").read_text().splitlines()
    assert [line for line in lines if "reservation" in line or "mail" in line] == [f"#SBATCH {f}" for f in FLAGS]
