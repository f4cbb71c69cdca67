"""What is finished is told by what files hold: what is missing, damaged or of another start is made anew."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import summaries
from refusals import refusal
from relay import commands
from relay.base.errors import Busy
from relay.base.files import looked_at, write_json
from relay.base.lock import exclusive
from relay.chain.sealed import MANIFEST
from relay.commands import train_again
from relay.run_folder import replaced, run_chain
from relay.run_folder.places import Places
from relay.status import compared, finished

BEGUN = {"generation": "first", "code": "c", "strategy_source": "s", "adopted_from": None, "attempts": []}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A run that has come to its end: two segments, a checkpoint, a summary."""
    made = Places(tmp_path, "run-1")
    write_json(made.run / "run.json", {})
    write_json(made.run / "proof.json", {"gate": "gate-1"})
    write_json(made.run / "start.json", {"generation": "first"})
    run_chain.note_begun(made.run, "first")
    for step in (4, 8):
        write_json(made.state(step), {"run": "run-1", "step": step, "generation": "first"})
    write_json(made.work / "chain.json", BEGUN)
    write_json(made.work / "step-8" / MANIFEST, {"files": {}})
    summary = {"run": "run-1", "status": "done", "generation": "first", "warmup_steps": 2}
    write_json(made.run / "summary.json", summary)
    return made


def unfinished(places: Places) -> list[str]:
    """What is not finished of the run."""
    found = {"start.json": finished.start(places.run), "summary.json": finished.summary(places, 2)}
    found |= {f"step-{step}.json": finished.segment(places, step) for step in (4, 8)}
    return sorted(name for name, why in found.items() if why)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("start.json", Path.unlink),
        ("step-4.json", lambda path: path.write_text("{")),
        ("summary.json", lambda path: path.write_text("[]")),
    ],
)
def test_a_missing_or_damaged_file_is_not_finished(places: Places, name: str, damage: Callable[[Path], object]) -> None:
    damage(places.run / name)
    assert unfinished(places) == [name]


def test_what_an_older_start_has_left_is_not_finished(places: Places) -> None:
    write_json(places.run / "start.json", {"generation": "second"})
    assert unfinished(places) == ["step-4.json", "step-8.json", "summary.json"]
    assert finished.summary(places, 2) == "is that of an older start of the run"
    write_json(places.state(4), {"run": "run-2", "step": 4, "generation": "first"})
    assert finished.segment(places, 4) == "is for run run-2, not run-1"
    write_json(places.state(4), {"asked": {"mode": "current", "stack": "torch", "image": None}})
    asked = {"mode": "conda", "stack": "torch", "conda": "mine"}
    why, _ = looked_at(places.state(4), asked=asked)
    assert why == "is for mode current, not conda, conda None, not mine"  # only what differs


def test_a_spot_check_of_a_run_that_was_removed_is_made_anew(places: Places) -> None:
    file = places.results / "verdict.json"
    write_json(file, {"setting": "s", "runs": [{"run": "run-1", "generation": "first"}]})
    (places.run / "start.json").unlink()
    (places.run / "begun.json").unlink()
    assert finished.spot_check(file, [places]) == ""  # its result is there
    (places.run / "summary.json").unlink()
    assert finished.spot_check(file, [places]) == "is that of an older start of the run"


def test_a_comparison_that_was_copied_is_made_again_for_its_folder_alone(tmp_path: Path, monkeypatch) -> None:
    plan = {"runs": []}
    write_json(tmp_path / "plan.json", plan)
    monkeypatch.chdir(tmp_path)
    compared.note(tmp_path / "plan.json", tmp_path)
    assert compared.differs(plan, tmp_path) == ""
    assert compared.differs({"runs": [], "margin": 0.1}, tmp_path) == "was made of other results or settings"
    monkeypatch.chdir("/")
    assert compared.differs(plan, tmp_path) == f"was made with folder {tmp_path}, which its script names"


# What a new start replaces


def summary_of(run: Path) -> str:
    """The start whose summary lies there."""
    return json.loads((run / "summary.json").read_text())["generation"]


def new_start(places: Places) -> None:
    """A start that has trained a little."""
    write_json(places.run / "start.json", {"generation": "second"})
    run_chain.note_begun(places.run, "second")
    write_json(places.work / "chain.json", BEGUN | {"generation": "second"})


def test_what_is_trained_is_kept_until_the_new_start_has_a_result(places: Places) -> None:
    assert replaced.trained(places) == "its result and checkpoints"
    old = replaced.aside(places)
    assert replaced.put_aside(places) == f"its result and checkpoints are moved to {old.run} and {old.work}"
    assert sorted(path.name for path in places.run.iterdir()) == ["proof.json", "run.json"]
    assert unfinished(old) == []
    assert (old.work / "step-8" / MANIFEST).is_file()
    assert replaced.trained(places) == replaced.put_aside(places) == ""
    new_start(places)
    finished.settle(places.results)
    assert old.run.exists()  # no result yet
    write_json(places.run / "summary.json", {"status": "done"})
    finished.settle(places.results)  # where the job that made it was killed before it had removed the older one
    assert (old.run.exists(), old.work.exists()) == (False, False)


@pytest.mark.parametrize(("status", "kept"), [("failed", True), ("done", False)])
def test_a_new_start_that_has_failed_leaves_the_older_result_aside(places: Places, monkeypatch, status, kept) -> None:
    replaced.put_aside(places)
    new_start(places)
    read = SimpleNamespace(id=places.run_id, strategy=SimpleNamespace(script=None))
    monkeypatch.setattr("relay.spec.run.Run.read", lambda _: read)
    monkeypatch.setattr("relay.training.summary.summarise", lambda *_: summaries.summary_of(status=status))
    assert commands.start(["summarise", "--run", places.run_id, "--results", str(places.results)]) == 0
    assert replaced.aside(places).run.exists() is kept


@pytest.mark.parametrize("words", [["-n", "run-1"], ["run-1", "--", "-np"]])
def test_a_call_that_only_shows_puts_nothing_aside(places: Places, monkeypatch, capsys, words) -> None:
    monkeypatch.chdir(places.results)
    monkeypatch.setattr(train_again, "chosen", lambda *_: [places])
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("Snakemake was started"))
    assert commands.start(["train-again", "--results", ".", *words]) == 0
    assert capsys.readouterr().out == "run-1: its result and checkpoints would be put aside\n"
    assert unfinished(places) == []


def test_what_is_aside_can_be_taken_back(places: Places) -> None:
    replaced.put_aside(places)
    new_start(places)
    replaced.take_back(places)
    assert unfinished(places) == []
    assert (places.work / "step-8" / MANIFEST).is_file()
    replaced.put_work_aside(places)  # of no start
    new_start(places)
    assert "nothing of it is in" in refusal(replaced.take_back, places)


def test_a_result_that_is_aside_is_not_replaced_by_a_start_without_one(places: Places) -> None:
    replaced.put_aside(places)
    new_start(places)
    told = replaced.put_aside(places)
    assert told.startswith("its records are deleted, and the result from before stays in ")
    assert (summary_of(replaced.aside(places).run), places.work.exists()) == ("first", False)


@pytest.mark.parametrize(("killed_at", "undone"), [(0, False), (1, False), (1, True), (2, False), (2, True)])
def test_a_kill_during_the_move_loses_nothing(places: Places, monkeypatch, killed_at, undone) -> None:
    """Before the first folder is moved, between the two, and before what is to be trained is written again."""
    moves = iter(range(9))
    move = replaced._move

    def killed(folder: Path, goal: Path) -> None:
        if next(moves) == killed_at:
            raise KeyboardInterrupt
        move(folder, goal)
        if killed_at == 2 and folder == places.run:
            raise KeyboardInterrupt

    monkeypatch.setattr(replaced, "_move", killed)
    with pytest.raises(KeyboardInterrupt):
        replaced.put_aside(places)
    monkeypatch.undo()
    (replaced.take_back if undone else replaced.put_aside)(places)
    there = places if undone else replaced.aside(places)
    assert summary_of(there.run) == "first"
    assert (there.work / "step-8" / MANIFEST).is_file()


def test_a_run_that_is_trained_just_now_is_not_put_aside(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.chain.files.WAIT_SECONDS", 0.0)
    with exclusive(places.work), pytest.raises(Busy):
        replaced.put_aside(places)
    assert unfinished(places) == []
