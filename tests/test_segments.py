"""The chain of a run: at which steps its segments end."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from plans import CPU, DDP, planned
from relay.base.errors import UserError
from relay.config.blocks import Segment
from relay.planning import segments
from relay.planning.handed import plan_json
from relay.spec.recipe import Length

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


def test_segments_end_at_planned_steps() -> None:
    found = planned(
        CPU,
        DDP | {"segment": {"epochs": 7}},
        DDP | {"devices_per_node": 4, "segment": {"steps": 440}},
        DDP | {"devices_per_node": 8, "segment": {"steps": 439}},
        segment={"steps": 200},
    )
    ends = {(run.strategy.name, run.shape.devices): found.segments(run) for run in found.runs}
    assert ends == {
        ("cpu", 1): [200, 400, 440],
        ("ddp", 2): [154, 308, 440],
        ("ddp", 4): [440],
        ("ddp", 8): [439, 440],
    }
    (run,) = found.runs_of("cpu")
    assert [found.previous_end(run, end) for end in (200, 400, 440)] == [0, 200, 400]
    with pytest.raises(ValueError):
        found.previous_end(run, 300)


def test_minutes_need_a_measured_speed_and_become_fixed_steps(tmp_path: Path) -> None:
    asked = CPU | {"segment": {"minutes": 5}}
    found = planned(asked, DDP, repeats=2, results=tmp_path)
    run = found.runs_of("cpu")[0]
    assert [waiting.id for waiting in found.unmeasured] == [run.id]
    with pytest.raises(UserError, match=r"segment\.minutes: 5 needs a measured speed.* run 'snakemake plan' first"):
        found.segments(run)
    with pytest.raises(UserError, match="needs a measured speed"):
        plan_json(found)
    speed = tmp_path / "speeds" / f"{run.setting_id}.json"
    speed.parent.mkdir()
    for damaged in ("", "[]", '{"seconds_per_step": 0}', '{"seconds_per_step": "fast"}'):
        speed.write_text(damaged)
        assert planned(asked, repeats=2, results=tmp_path).unmeasured  # it is measured again
    speed.write_text(json.dumps({"seconds_per_step": 1.0}))
    found = planned(asked, DDP, repeats=2, results=tmp_path)
    assert found.unmeasured == []
    assert found.segments(run) == [180, 360, 440]  # 300 s less a fifth, less 60 s to start


def test_steps_in_so_many_minutes() -> None:
    length = Length(epochs=1, steps_per_epoch=2000, total_steps=2000, evaluate_every_steps=2000, warmup_steps=0)
    steps = partial(segments.steps_in_a_job, length=length)
    assert steps(Segment(minutes=10), seconds_per_step=0.5) == 840  # 600 s less a fifth, less 60 s to start
    assert steps(Segment(minutes=2), seconds_per_step=36) == 1
    with pytest.raises(
        UserError, match=r"segment.minutes: 1 leaves no time for a step of 70 seconds; allowed: at least 2\.8"
    ):
        steps(Segment(minutes=1), seconds_per_step=70)
