"""Results of another version: told in one message, never gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.base.errors import UserError
from relay.planning.config import load
from relay.planning.planner import plan
from relay.run_folder.layout import LAYOUT, check_layout, refuse_other


def test_new_results_note_their_layout_and_are_gone_on_with(tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "datasets" / "digits").mkdir(parents=True)  # good for every layout
    check_layout(results)
    assert json.loads((results / "layout.json").read_text()) == {"layout": LAYOUT}
    (results / "runs").mkdir()
    check_layout(results)


@pytest.mark.parametrize("noted", [None, '{"layout": 99}'])
def test_results_of_another_layout_are_refused_and_left_alone(tmp_path: Path, noted: str | None) -> None:
    results = tmp_path / "results"
    run = results / "runs" / "cpu-0123456789ab" / "run.json"
    run.parent.mkdir(parents=True)
    run.write_text('{"id": "cpu-0123456789ab", "nodes": 1}')
    if noted is not None:
        (results / "layout.json").write_text(noted)
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    for check in (refuse_other, check_layout):
        with pytest.raises(UserError, match=rf"another version .*this one has {LAYOUT}.*Nothing is lost: move it"):
            check(results)
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("noted", "kept"), [(None, "run"), ("cut off", "gate")])
def test_todays_results_whose_note_is_lost_are_known_and_noted_again(
    tmp_path: Path, noted: str | None, kept: str
) -> None:
    results, planned = tmp_path / "results", plan(load({"comparisons": [{"strategy": "cpu"}]}), gpus=0, cpus=2)
    run, gate = planned.runs[0], next(iter(planned.gates.values()))
    specification = {"run": run, "gate": gate}[kept]
    folder = {"run": results / "runs" / run.id, "gate": results / "equivalence" / "gates" / gate.id}[kept]
    specification.write(folder / f"{kept}.json")
    old = results / "runs" / "cpu-0123456789ab" / "run.json"
    old.parent.mkdir(parents=True)
    old.write_text("damaged")
    if noted is not None:
        (results / "layout.json").write_text(noted)
    assert not refuse_other(results)
    check_layout(results)
    assert json.loads((results / "layout.json").read_text()) == {"layout": LAYOUT}
