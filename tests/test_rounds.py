"""A setting that is added on a later day is measured beside the recommended one, which is measured again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plans import CPU, DDP, planned
from relay.base.files import write_json
from relay.planning import rounds
from relay.planning.plan import Plan

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


def made(results: Path, *comparisons: dict[str, Any], **keys: Any) -> Plan:
    given = {"repeats": 3, "device": "cpu", "cpus": 8, **keys}
    return planned(*comparisons, speeds=results / "speeds.json", record=True, **given)


def measured(results: Path, days_ago: int, *comparisons: dict[str, Any]) -> str:
    """The first setting was recommended so many days ago, when all were measured; its id."""
    runs = made(results, *comparisons).runs
    started = (datetime.now(UTC) - timedelta(days=days_ago)).isoformat()
    for run in runs:
        write_json(results / "runs" / run.id / "summary.json", {"status": "done", "started_at": started})
        write_json(results / "runs" / run.id / "start.json", {"generation": "1"})
        write_json(results / "runs" / run.id / "begun.json", {"generation": "1", "run": run.id})
    write_json(results / "answer.json", {"answers": [{"recommended": {"setting": runs[0].setting_id}}]})
    return runs[0].setting_id


def test_the_recommended_setting_shares_the_rounds_of_one_that_is_added_on_a_later_day(tmp_path: Path) -> None:
    two = CPU, CPU | {"cpus_per_task": 2}
    anchor = measured(tmp_path, 2, CPU)
    found = made(tmp_path, *two)
    assert [run.setting_id == anchor for run in found.runs].count(True) == 6
    for place in range(3):
        assert {run.repeat for run in found.runs[3 * place : 3 * place + 3]} == {place, 3 + place}
    assert any("is measured again, 3 times, because" in warning for warning in found.warnings)
    rounds.write(tmp_path, found.anchors)
    later = made(tmp_path, *two)
    assert ([run.id for run in later.runs], later.anchors) == ([run.id for run in found.runs], found.anchors)
    assert len(made(tmp_path, *two, anchor=False).runs) == 6
    measured(tmp_path, 2, *two)
    write_json(tmp_path / "answer.json", {"answers": [{"recommended": {"setting": anchor}}]})
    third = made(tmp_path, *two, DDP)
    assert sorted(run.repeat for run in third.runs if run.setting_id == anchor) == [*range(9)]


def test_on_the_same_day_nothing_is_measured_again(tmp_path: Path) -> None:
    measured(tmp_path, 0, CPU)
    assert len(made(tmp_path, CPU, CPU | {"cpus_per_task": 2}).runs) == 6
    measured(tmp_path, 2, CPU)
    assert len(made(tmp_path, CPU, repeats=5).runs) == 5


@pytest.mark.parametrize(
    "damaged", ["[]", '{"answers": null}', '{"answers": [{"recommended": {}}, 3]}', '{"a": {"repeats": "2"}}', "{"]
)
def test_damaged_answers_and_anchors_are_as_none(tmp_path: Path, damaged: str) -> None:
    for name in ("answer.json", rounds.FILE):
        (tmp_path / name).write_text(damaged)
    assert rounds._recommended(tmp_path) == []
    assert rounds.read(tmp_path) == {}
