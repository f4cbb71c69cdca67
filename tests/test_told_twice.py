"""Records that tell the same steps twice count once, and a lost line moves no other line's steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chain_runs import DIGITS, short_run
from relay.base.files import write_json
from relay.run_folder import attempts
from relay.training.summary import kept_losses, summarise

FACTS = {"host": "a", "device_name": "b", "cpus": 2, "versions": {}, "threads": 1}
LINES: list[dict[str, Any]] = [
    {"time": 1.0, "run": "run-1", "start": 0, "ranks": [FACTS]},
    {"time": 2.0, "after": 0, "losses": [4.0, 3.0], "blocks": [[0, 2, 1.0, 0.0]], "evaluations": []},
    {"time": 3.0, "after": 2, "losses": [2.0, 1.0], "blocks": [[2, 4, 1.0, 0.0]],
     "evaluations": [{"step": 4, "test_loss": 0.5, "test_accuracy": 0.9}]},
    {"time": 4.0, "end": 4, "stopped": None, "peak_memory_bytes": 1, "counted": {"bytes": 7}},
]  # fmt: skip


def recorded(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """The folder of a run of four steps, with these lines of its only attempt."""
    work = folder / "run-1"
    path = attempts.attempt_path(work, 1)
    path.parent.mkdir(parents=True)
    path.write_text("".join(map(attempts.line_of, lines)))
    entry = {"number": 1, "started": 0.0, "ended": 5.0}
    write_json(work / "chain.json", {"generation": "1", "code": "c", "strategy_source": "s", "attempts": [entry]})
    return work


@pytest.mark.parametrize(
    "lines",
    [LINES[:3] + LINES, [*LINES[:2], LINES[1], *LINES[2:]]],
    ids=["all but its end, then all", "a line"],
)
def test_what_was_appended_again_counts_once(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    run = short_run(DIGITS, total_steps=4, warmup_steps=0)
    once, twice = recorded(tmp_path / "once", LINES), recorded(tmp_path / "twice", lines)
    assert summarise(run, twice) == summarise(run, once)
    assert kept_losses(twice) == {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}


def test_a_lost_line_moves_no_other_steps_losses(tmp_path: Path) -> None:
    """A spot check would hold each loss against another step's, and strike the run out."""
    assert kept_losses(recorded(tmp_path, [LINES[0], *LINES[2:]])) == {3: 2.0, 4: 1.0}
