"""Files of one run in another one's place, damaged small ones, and clocks that jump: told, and never a wrong result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import summarise
from chain_runs import short_run
from own_tasks import spec
from relay.run_folder import attempts, chain
from relay.run_folder.places import Places
from relay.spot_check import job as spot_check
from relay.training.summary import summarise as summary_of
from results_tree import Tree, status

pytest_plugins = ["results_tree"]
DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_text('{"gate": "a-g'),
    "other JSON": lambda path: path.write_text("[1]"),
}
each_damage = pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)


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
    assert [line["start"] for line in attempts.read(tmp_path / "run-1", 1)] == [0]
    assert attempts.read(tmp_path / "run-2", 1) == []


def test_checkpoints_of_another_start_are_not_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, places = short_run(spec("lenet-digits")), Places(tmp_path, "run-1")
    run.write(places.run / "run.json")
    (places.run / "chain.json").write_text('{"generation": "mine"}')
    places.work.mkdir(parents=True)
    chain.write(places.work, {"generation": "its", "code": "c", "strategy_source": "s", "attempts": []})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["summarise.py", "--run", "run-1", "--results", str(tmp_path)])
        assert status(lambda _: summarise.main()) == 1
    assert f"the records in {places.work} are those of another run, or of an older start" in capsys.readouterr().err
    assert not (places.run / "summary.json").exists()


@each_damage
def test_a_damaged_note_of_a_spot_check_is_none(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    """The run is then checked again, as far as its states are there."""
    places = Places(tmp_path, "run-1")
    path = places.work / spot_check.FOLDER / spot_check.KEPT_VERDICT
    path.parent.mkdir(parents=True)
    found = {"run": "run-1", "status": "passed", "spots": [], "problems": [], "unchecked": [], "generation": "1"}
    path.write_text(json.dumps(found))
    assert spot_check._known(places) == found
    path.write_text(json.dumps(found | {"run": "run-2"}))
    assert spot_check._known(places) is None
    harm(path)
    assert spot_check._known(places) is None


def test_a_clock_that_was_set_back_takes_no_time_from_a_job(tmp_path: Path) -> None:
    """The hour that it says is then wrong; that a job was held for less time than it trained cannot be."""
    facts = {"host": "a", "device_name": "b", "cpus": 2, "versions": {}, "threads": 1}
    path = attempts.attempt_path(tmp_path, 1)
    path.parent.mkdir()
    lines = [
        {"time": 900.0, "start": 0, "ranks": [facts]},
        {"time": 100.0, "after": 0, "losses": [1.0, 0.5], "blocks": [[0, 2, 8.0, 0.0]], "evaluations": []},
        {"time": 101.0, "end": 2, "stopped": None, "peak_memory_bytes": 1, "counted": {}},
    ]
    path.write_text("".join(map(attempts.line_of, lines)))
    entry = {"number": 1, "started": 900.0, "ended": 102.0}
    chain.write(tmp_path, {"generation": "1", "code": "c", "strategy_source": "s", "attempts": [entry]})
    found = summary_of(short_run(spec("lenet-digits"), total_steps=2), tmp_path)
    assert (found["allocated_seconds"], found["goodput"]) == (8.0, 1.0)
