"""A summary or a verdict that somebody has edited after it was written is no result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.base.files import edited, read_json, write_json_with_digest
from relay.comparison.spot_checks import spot_checked
from relay.run_folder import proofs
from results_tree import Tree

pytest_plugins = ["results_tree"]


def edit(path: Path, old: str, new: str) -> None:
    """Change the text of a file whose result has a digest."""
    write_json_with_digest(path, read_json(path))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("runs/slow-r0/summary.json", '"samples_per_second": 100.0', '"samples_per_second": 900.0'),
        ("equivalence/gates/gate-slow/verdict.json", '"equivalent": false', '"equivalent": true'),
    ],
)
def test_a_comparison_refuses_it(tree: Tree, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str) -> None:
    tree.setting("ddp", [100.0], name="slow", devices_per_node=2, verdict={"equivalent": False, "problems": ["wrong"]})
    edit(tree.root / file, old, new)
    assert tree.compare() == 1
    assert (
        f"{file.rpartition('/')[2]}: was changed after it had been written; remove it and run"
        in capsys.readouterr().err
    )


def test_the_digest_is_that_of_what_is_read_back(tmp_path: Path) -> None:
    """Whatever Python's own types were: numbers as names, tuples, what is no number."""
    path = tmp_path / "verdict.json"
    write_json_with_digest(path, {"b": {10: (1, 2), 9: float("nan")}, "a": None})
    assert not edited(read_json(path))
    write_json_with_digest(path, read_json(path))  # again: the digest is no part of itself
    assert not edited(read_json(path))
    assert not edited({"of": "an older version"})


def test_what_was_found_of_a_run_is_not_made_a_pass_by_an_edit(tmp_path: Path) -> None:
    path = tmp_path / "equivalence" / "spot_checks" / "setting" / "verdict.json"
    found = {
        "run": "run-1",
        "status": "failed",
        "spots": [],
        "problems": ["wrong"],
        "unchecked": [],
        "generation": None,
    }
    write_json_with_digest(path, {"setting": "setting", "runs": [found]})
    assert spot_checked("run-1", "setting", tmp_path, asked=True).status == "failed"
    edit(path, '"failed"', '"passed"')
    assert spot_checked("run-1", "setting", tmp_path, asked=True).status == "not checked"


def test_a_verdict_that_was_edited_proves_no_run_before(tmp_path: Path) -> None:
    path = tmp_path / "equivalence" / "gates" / "a-gate" / "verdict.json"
    write_json_with_digest(path, {"gate": "a-gate", "equivalent": False, "problems": ["wrong"]})
    edit(path, "false", "true")
    adopted = {"run": "run-1", "step": 4, "gate": "a-gate"}
    assert "its gate has given no verdict" in proofs.inherited(tmp_path, adopted)[0]
    assert json.loads(path.read_text())["equivalent"] is True
