"""The evidence on the page: what a reader needs to check a figure, from the records themselves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from relay.comparison.evidence import evidence
from relay.comparison.inputs import read_inputs
from relay.planning.config import Config, load
from relay.process.system import driver
from relay.run_folder import snapshot
from results_tree import Tree

pytest_plugins = ["results_tree"]


@pytest.mark.slow
def test_the_transport_is_what_nccl_chose_in_the_preflight(tree: Tree) -> None:
    tree.setting("ddp", [900.0], devices_per_node=2, device="cuda", backend="nccl")
    tree.setting("fsdp", [900.0], devices_per_node=2, device="cuda", backend="nccl")
    tree.setting("mps", [800.0], processes_per_device=2, device="cuda", backend="gloo")
    tree.setting("single_gpu", [500.0], device="cuda")
    for run in tree.runs[:2]:
        run["preflight"] = "two-gpus"
    nccl = {"version": "2.26.2", "network": "IB", "via": {"P2P": 32, "NET/IB": 16}, "warnings": []}
    rank = {"driver": {"version": "570.86.15"}, "nccl": nccl}
    tree.write("preflight/two-gpus/facts.json", {"ranks": [rank, rank]})
    found = evidence(read_inputs(tree.write_plan(), tree.root), tree.root)
    assert found.transports == ["gloo: mps", "nccl over IB (NET/IB, P2P): ddp, fsdp"]
    assert found.drivers == ["570.86.15"]
    assert tree.compare() == 0
    assert "nccl over IB (NET/IB, P2P): ddp, fsdp" in tree.html


def test_without_a_preflight_the_transport_is_the_declared_one(tree: Tree) -> None:
    tree.setting("ddp", [900.0], devices_per_node=2)
    assert evidence(read_inputs(tree.write_plan(), tree.root), tree.root).transports == ["gloo: ddp"]


def test_every_figure_leads_to_a_record(full: Tree) -> None:
    for setting in {run["setting"] for run in full.runs}:
        assert f'href="#runs-{setting}"' in full.html
        assert f'id="runs-{setting}"' in full.html
    for run in full.runs:
        finished = (full.root / "runs" / run["id"] / "summary.json").is_file()
        assert (f'href="runs/{run["id"]}/summary.json"' in full.html) is finished


def test_the_whole_config_is_there_and_loads_again(tree: Tree) -> None:
    ddp = {"strategy": "ddp", "devices_per_node": [2, 4], "segment": {"epochs": 1}}
    given = load({"epochs": 3, "comparisons": [ddp]})
    assert load(given.written()) == given
    assert set(given.written()) == set(Config.model_fields)
    assert given.written()["comparisons"][0]["strategy"] == "ddp"
    tree.setting("cpu", [900.0])
    plan = tree.write_plan()
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"config": given.written()}))
    found = evidence(read_inputs(plan, tree.root), tree.root)
    assert "devices_per_node:" in found.config
    assert not found.shrunk


def test_a_snapshot_tells_the_commit_that_it_was_taken_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    package = tmp_path / "relay"
    package.mkdir()
    (package / "code.py").write_text("1\n")
    git("init", "--quiet")
    git("add", ".")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "x")
    monkeypatch.setattr(snapshot, "PACKAGE", package)
    frozen = snapshot.freeze(None, folder=tmp_path / "results")
    told = json.loads((frozen / snapshot.COMMIT).read_text())
    assert told == {"commit": git("rev-parse", "HEAD"), "changed": False}
    assert snapshot.changed_since(frozen) is None
    (package / "code.py").write_text("2\n")
    assert (
        json.loads((snapshot.freeze(None, folder=tmp_path / "results") / snapshot.COMMIT).read_text())["changed"]
        is True
    )


def test_a_checkout_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "relay"
    package.mkdir()
    (package / "code.py").write_text("1\n")
    monkeypatch.setattr(snapshot, "PACKAGE", package)
    assert not (snapshot.freeze(None, folder=tmp_path / "results") / snapshot.COMMIT).exists()


def test_the_commit_stands_beside_the_code_on_the_page(tree: Tree) -> None:
    tree.setting("cpu", [900.0])
    tree.write("code/c0de/commit.json", {"commit": "6da62e762e3f3a60eb40", "changed": True})
    found = evidence(read_inputs(tree.write_plan(), tree.root), tree.root)
    assert found.codes == ["c0de (git commit 6da62e762e3f, with changes that are not committed)"]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 22:50:36 UTC 2025\nGCC version: 12\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@host)\n",
    ],
)
def test_the_drivers_version_is_read_from_its_module(tmp_path: Path, text: str) -> None:
    (tmp_path / "version").write_text(text)
    assert driver(tmp_path / "version") == "570.86.15"
    assert driver(tmp_path / "missing") is None
