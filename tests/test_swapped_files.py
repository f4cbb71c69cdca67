"""Files of one run in another one's place, damaged small ones, and clocks that jump: told, and never a wrong result."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain_runs import short_run
from own_tasks import spec
from relay.base.files import write_json
from relay.run_folder import attempts
from relay.run_folder.places import Places
from results_tree import Tree, status

pytest_plugins = ["results_tree"]


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("runs/{}-r0/summary.json", "summary.json: is that of run fast-r0: it was copied there; remove it"),
        ("equivalence/gates/gate-{}/verdict.json", "verdict.json: is that of gate gate-fast: it was copied there"),
    ],
)
def test_what_was_copied_from_another_run_or_gate_is_told(
    tree: Tree, capsys: pytest.CaptureFixture[str], file: str, told: str
) -> None:
    tree.setting("ddp", [100.0], name="slow", devices_per_node=2)
    tree.setting("ddp", [900.0], name="fast", devices_per_node=2, options={"bucket_megabytes": 1})
    (tree.root / file.format("slow")).write_bytes((tree.root / file.format("fast")).read_bytes())
    assert tree.compare() == 1
    assert told in capsys.readouterr().err
    (row,) = [row for row in tree.rows(partial=True) if row["setting"] == "slow"]
    assert row["status"] == "failed"


def test_records_of_another_run_are_none(tmp_path: Path) -> None:
    for folder in ("run-1", "run-2"):
        path = attempts.attempt_path(tmp_path / folder, 1)
        path.parent.mkdir(parents=True)
        path.write_text(attempts.line_of({"time": 1.0, "run": "run-1", "start": 0, "ranks": []}))
    assert [line["start"] for line in attempts.read(tmp_path / "run-1", 1).lines] == [0]
    assert not attempts.read(tmp_path / "run-2", 1)


def test_checkpoints_of_another_start_are_not_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, places = short_run(spec("lenet-digits")), Places(tmp_path, "run-1")
    run.write(places.run / "run.json")
    (places.run / "start.json").write_text('{"generation": "mine"}')
    places.work.mkdir(parents=True)
    write_json(places.work / "chain.json", {"generation": "its", "code": "c", "strategy_source": "s", "attempts": []})
    assert status("summarise", "--run", "run-1", "--results", str(tmp_path)) == 1
    assert f"the records in {places.work} are those of another run, or of an older start" in capsys.readouterr().err
    assert not (places.run / "summary.json").exists()
