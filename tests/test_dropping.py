"""Which repeats are left out by what was measured, never the winner's by luck; and which are measured again."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plans import CPU, DDP, planned
from relay.base.files import write_json
from relay.planning import rounds
from relay.planning.handed import plan_json
from relay.planning.plan import Plan
from relay.planning.rounds import First, clearly_slower
from relay.planning.table import render
from simulated_speeds import NOISES, speeds

pytestmark = pytest.mark.usefixtures("in_the_project")


def first(name: str, speed: float | tuple[float, ...], cost: float = 1.0, **more: Any) -> First:
    speeds = speed if isinstance(speed, tuple) else (speed, speed)
    given = {"setting": name, "name": name, "trains": ("t", ""), "speeds": speeds, "cost": cost, "proven": True}
    return First(**given | more)


def test_only_what_is_slower_by_the_factor_is_dropped() -> None:
    found = clearly_slower([first("fast", 200.0), first("near", 101.0), first("slow", 100.0)], 2.0)
    assert found == {"slow": "after 2 repeats: fast was 2.0 times as fast, and costs no more (drop_slower_than: 2)"}


def test_a_cheaper_one_is_never_dropped_for_a_dearer_one() -> None:
    """One core may be the answer, however much faster eight of them are."""
    assert clearly_slower([first("one", 100.0, 1), first("eight", 700.0, 8)], 2.0) == {}
    assert list(clearly_slower([first("one", 100.0, 1), first("eight", 40.0, 8)], 2.0)) == ["eight"]


def test_nothing_is_dropped_for_what_is_not_proven_or_another_task() -> None:
    slow = first("slow", 100.0)
    assert clearly_slower([slow, first("wrong", 900.0, proven=False)], 2.0) == {}
    assert clearly_slower([slow, first("other", 900.0, trains=("another", ""))], 2.0) == {}


@pytest.mark.parametrize("noise", NOISES)
def test_the_winner_is_not_dropped_by_luck(noise: str) -> None:
    """Two settings of the same cost, as fast or 5 % apart, with a spread of 5 %; and one that is three times slower."""
    draws, wrong, right = 2000, 0, 0
    disturbed = np.random.default_rng(1)
    for ratio in (1.0, 1.05):
        for one, other in speeds(noise, 2, ratio, 0.05, draws):
            one[0] /= 3 if disturbed.random() < 1 / 6 else 1  # one in six is disturbed
            measured = {"winner": one, "other": other, "slow": [speed / 3 for speed in other]}
            found = clearly_slower([first(name, tuple(each)) for name, each in measured.items()], 2.0)
            wrong += "winner" in found
            right += "slow" in found
    assert wrong <= 2 * draws / 1000, wrong / (2 * draws)
    assert right >= 0.99 * 2 * draws, right / (2 * draws)


# In a plan


def plan_of(results: Path, *comparisons: dict[str, Any], **keys: Any) -> Plan:
    """Three repeats on CPUs."""
    given = {"repeats": 3, "device": "cpu", "cpus": 8, **keys}
    return planned(*comparisons, results=results, may="look", **given)


def made(results: Path, drop_slower_than: float | None = 2.0) -> Plan:
    """Three repeats on one CPU, by two loaders."""
    return plan_of(results, CPU | {"loader": ["resident", "dataloader"]}, drop_slower_than=drop_slower_than)


def measured(results: Path, found: Plan, *, equivalent: bool = True) -> None:
    """The first repeats have finished; the data in memory is four times as fast."""
    for run in found.runs:
        speed = 4000.0 if run.feeding.loader == "resident" else 1000.0
        if run.repeat < 2:
            write_json(results / "runs" / run.id / "summary.json", {"status": "done", "samples_per_second": speed})
        own = {"global_batch_size": run.batch.global_batch_size, "learning_rate": run.task.learning_rate}
        nothing: dict[str, Any] = {"parts": [], "problems": [], "notes": []}
        verdict = {"equivalent": equivalent, "own_batches": [{**own, "equivalent": equivalent, **nothing}], **nothing}
        write_json(results / "equivalence" / "gates" / found.gate(run) / "verdict.json", verdict)


def loaders(found: Plan) -> list[tuple[str, int]]:
    return sorted((run.feeding.loader, run.repeat) for run in found.runs)


ALL = [("dataloader", 0), ("dataloader", 1), ("dataloader", 2), ("resident", 0), ("resident", 1), ("resident", 2)]
DROPPED_ONE = [*ALL[:2], *ALL[3:]]


def test_the_next_call_leaves_its_further_repeats_out_and_says_so(tmp_path: Path) -> None:
    before = made(tmp_path)
    assert loaders(before) == ALL
    measured(tmp_path, before)
    found = made(tmp_path)
    assert loaders(found) == DROPPED_ONE
    (slow,) = [each for each in found.settings if each.setting.feeding.loader == "dataloader"]
    assert (slow.repeats, list(plan_json(found)["dropped"])) == (2, [slow.id])
    assert "was 4.0 times as fast, and costs no more (drop_slower_than: 2)" in " ".join(render(found).split())
    assert loaders(made(tmp_path, drop_slower_than=None)) == ALL


def test_a_gate_or_a_spot_check_against_the_faster_one_brings_the_others_back(tmp_path: Path) -> None:
    before = made(tmp_path)
    measured(tmp_path, before, equivalent=False)
    assert loaders(made(tmp_path)) == ALL
    measured(tmp_path, before)
    (fast,) = {run.setting_id for run in before.runs if run.feeding.loader == "resident"}
    path = tmp_path / "equivalence" / "spot_checks" / fast / "verdict.json"
    write_json(path, {"runs": [{"status": "failed"}]})
    assert loaders(made(tmp_path)) == ALL
    write_json(path, {"runs": [{"status": "passed"}]})
    assert loaders(made(tmp_path)) == DROPPED_ONE


# A setting that is added on a later day is measured beside the recommended one, which is measured again


def recommended(results: Path, days_ago: int, *comparisons: dict[str, Any]) -> str:
    """The first setting was recommended so many days ago, when all were measured; its id."""
    runs = plan_of(results, *comparisons).runs
    started = (datetime.now(UTC) - timedelta(days=days_ago)).isoformat()
    for run in runs:
        write_json(results / "runs" / run.id / "summary.json", {"status": "done", "started_at": started})
        write_json(results / "runs" / run.id / "start.json", {"generation": "1"})
        write_json(results / "runs" / run.id / "begun.json", {"generation": "1", "run": run.id})
    write_json(results / "answer.json", {"answers": [{"recommended": {"setting": runs[0].setting_id}}]})
    return runs[0].setting_id


def test_the_recommended_setting_shares_the_rounds_of_one_that_is_added_on_a_later_day(tmp_path: Path) -> None:
    two = CPU, CPU | {"cpus_per_task": 2}
    anchor = recommended(tmp_path, 2, CPU)
    found = plan_of(tmp_path, *two)
    assert [run.setting_id == anchor for run in found.runs].count(True) == 6
    for place in range(3):
        assert {run.repeat for run in found.runs[3 * place : 3 * place + 3]} == {place, 3 + place}
    assert any("is measured again, 3 times, because" in warning for warning in found.warnings)
    rounds.write(tmp_path, found.anchors)
    later = plan_of(tmp_path, *two)
    assert ([run.id for run in later.runs], later.anchors) == ([run.id for run in found.runs], found.anchors)
    assert len(plan_of(tmp_path, *two, anchor=False).runs) == 6
    recommended(tmp_path, 2, *two)
    write_json(tmp_path / "answer.json", {"answers": [{"recommended": {"setting": anchor}}]})
    third = plan_of(tmp_path, *two, DDP)
    assert sorted(run.repeat for run in third.runs if run.setting_id == anchor) == [*range(9)]


def test_on_the_same_day_nothing_is_measured_again(tmp_path: Path) -> None:
    recommended(tmp_path, 0, CPU)
    assert len(plan_of(tmp_path, CPU, CPU | {"cpus_per_task": 2}).runs) == 6
    recommended(tmp_path, 2, CPU)
    assert len(plan_of(tmp_path, CPU, repeats=5).runs) == 5


@pytest.mark.parametrize(
    "damaged", ["[]", '{"answers": null}', '{"answers": [{"recommended": {}}, 3]}', '{"a": {"repeats": "2"}}', "{"]
)
def test_damaged_answers_and_anchors_are_as_none(tmp_path: Path, damaged: str) -> None:
    for name in ("answer.json", rounds.FILE):
        (tmp_path / name).write_text(damaged)
    assert rounds._recommended(tmp_path) == []
    assert rounds.read(tmp_path) == {}
