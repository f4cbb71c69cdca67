"""`snakemake plan` says what each time limit would mean, from what earlier jobs took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plans import CPU, ROOT
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.run_folder import attempts, job_times
from relay.run_folder.job_times import JobTimes
from relay.spec.run import Run
from relay.spec.site import load_site

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


def made(results: Path, site: Path | None = None, **keys: Any) -> Plan:
    config = load({"repeats": 1, "device": "cpu", "comparisons": [CPU], **keys})
    known = load_site(str(site), ROOT) if site else None
    return plan(config, root=ROOT, speeds=results / "speeds.json", site=known)


def leave(results: Path, run: Run, jobs: Sequence[tuple[float, float, float, int]], began: float = 1000.0) -> None:
    """What jobs of a run leave behind: of each the seconds to start, for a step, and to save, and how many steps."""
    work, step, entries = results / "checkpoints" / run.id, 0, []
    run.write(results / "runs" / run.id / "run.json")
    for number, (start, seconds, saving, steps) in enumerate(jobs, start=1):
        first, last = began + start, began + start + steps * seconds + 5.0  # 5 s of evaluation
        ended = last + saving
        lines = [
            {"time": first, "run": run.id, "start": step, "ranks": []},
            {"time": last, "after": step, "blocks": [[step, step + steps, steps * seconds, 0.0]]},
            {"time": ended - 1, "end": step + steps, "stopped": None},
        ]
        path = attempts.attempt_path(work, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(attempts.line_of(line) for line in lines))
        entries.append({"number": number, "started": began, "ended": ended})
        began, step = ended, step + steps
    chain = {"generation": "g", "code": "c", "strategy_source": "s", "adopted_from": None, "attempts": entries}
    (work / "chain.json").write_text(json.dumps(chain))


def test_a_jobs_times_are_read_from_its_records(tmp_path: Path) -> None:
    (run,) = made(tmp_path).runs
    leave(tmp_path, run, [(30.0, 2.0, 8.0, 100), (40.0, 3.0, 4.0, 100)])
    found = job_times.of_run(tmp_path / "checkpoints" / run.id)
    expected = JobTimes(
        seconds_per_step=2.0, startup_seconds=30.0, between_seconds_per_step=0.05, saving_seconds=8.0, jobs=1
    )
    assert found == [expected, replace(expected, seconds_per_step=3.0, startup_seconds=40.0, saving_seconds=4.0)]
    mean, slowest = job_times.mean(found), job_times.slowest(found)
    assert (mean.seconds_per_step, mean.startup_seconds, mean.saving_seconds, mean.jobs) == (2.5, 35.0, 6.0, 2)
    assert (slowest.seconds_per_step, slowest.startup_seconds, slowest.saving_seconds) == (3.0, 40.0, 8.0)
