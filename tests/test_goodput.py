"""The time of a run's jobs is split into parts that add up: starts, loading, steps, what was lost, saves, the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.run_folder import chain as chains
from relay.training.goodput import PARTS, spent, split

pytest_plugins = ["chain_runs"]

ENTRY = {"number": 1, "submitted": 40.0, "job_started": 100.0, "started": 110.0, "ended": 200.0, "job": "7"}


def records(*, ended: bool = True) -> list[dict[str, Any]]:
    """Launched at 115, begun at 125, 40 seconds of steps, 9 of evaluation, 6 of saving, the last record at 190."""
    lines: list[dict[str, Any]] = [
        {"time": 125.0, "start": 0, "launched": 115.0},
        {"time": 150.0, "blocks": [[0, 10, 20.0, 0.0]], "losses": [1.0] * 10, "paused": {"evaluation": 4.0}},
        {
            "time": 180.0,
            "blocks": [[10, 20, 20.0, 0.0]],
            "losses": [1.0] * 10,
            "paused": {"evaluation": 5.0, "saving": 2},
        },
    ]
    return [*lines, {"time": 190.0, "end": 20, "paused": {"saving": 4.0}}] if ended else lines


def test_the_parts_of_a_job_add_up_to_its_time() -> None:
    found = spent(ENTRY, records(), 40.0)
    assert found.parts == {
        "startup": 15.0, "loading": 10.0, "steps": 40.0, "repeated": 0.0, "evaluation": 9.0, "saving": 6.0, "idle": 20.0
    }  # fmt: skip
    assert tuple(found.parts) == PARTS
    assert (found.seconds, found.queued, found.last) == (100.0, 60.0, 20)


def test_steps_done_again_are_those_recorded_and_those_that_a_kill_took() -> None:
    """It was killed at 200, 20 seconds after its last record; the next attempt went on from step 10."""
    found = spent(ENTRY, records(ended=False), 20.0)
    assert (found.parts["steps"], found.parts["repeated"]) == (20.0, 20.0 + 20.0)
    assert (found.parts["saving"], found.last) == (2.0, 20)
    assert found.seconds == pytest.approx(100.0)


def test_a_job_that_ends_late_notes_its_end_in_its_own_start_alone(tmp_path: Path) -> None:
    chain = {"generation": "new", "code": "c", "strategy_source": "s", "attempts": [{"number": 1, "started": 110.0}]}
    chains.write(tmp_path, chain)
    assert chains.note_end(tmp_path, "old", 1, 200.0) is None
    assert chains.read(tmp_path) == chain
    noted = chains.note_end(tmp_path, "new", 1, 200.0)
    assert noted == chains.read(tmp_path)
    assert noted["attempts"] == [{"number": 1, "started": 110.0, "ended": 200.0}]


def test_attempts_are_added_up_and_told_one_by_one() -> None:
    found = split([spent(ENTRY, records(ended=False), 20.0), spent(ENTRY | {"number": 2}, records(), 20.0)])
    assert found["queue_seconds"] == 120.0
    assert found["repeated_seconds"] == 40.0 + 20.0
    assert [(job["attempt"], job["last"], job["job"]) for job in found["jobs"]] == [(1, 20, "7"), (2, 20, "7")]
