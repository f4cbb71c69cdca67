"""`snakemake status`: how each run of a plan stands, from its files and Slurm's queue."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from relay.base import lock
from relay.run_folder import attempts, chain, samples
from relay.run_folder.samples import Look
from relay.slurm.commands import QueuedJob
from relay.spec.looked import Looked
from relay.spec.run import Run
from relay.spec.tasks import BUILT_IN
from relay.status import page
from relay.status.runs import Standing, queued, standing
from specifications import made

LOOKED = Looked.read(BUILT_IN / "cards" / "lenet-digits.json")
ENDS = (100, 200, 300)


def a_run(number: int = 1) -> Run:
    return made(
        Run,
        id=f"cpu-{number}",
        setting_id="cpu-setting",
        seed=number,
        repeat=number - 1,
        task=LOOKED.task,
        dataset=LOOKED.dataset,
        strategy="cpu",
        global_batch_size=64,
        epochs=15.0,
        steps_per_epoch=20,
        total_steps=300,
        evaluate_every_steps=300,
    )


class Folder:
    """The files of runs, as their jobs leave them."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def write(self, path: str, value: Any) -> None:
        target = self.results / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value))

    def records(self, run: Run, step: int, *, ago: float) -> None:
        """An attempt from step 100 that has come to `step` in 100 s, and wrote that so many seconds ago."""
        now = time.time() - ago
        path = attempts.attempt_path(self.results / "checkpoints" / run.id, 1)
        path.parent.mkdir(parents=True)
        lines = [{"time": now - 100, "start": 100}, {"time": now, "blocks": [[step - 10, step, 5.0, 0.1]]}]
        path.write_text("".join(attempts.line_of(line) for line in lines))

    def standing(self, run: Run, queue: Any = None) -> Standing:
        return standing(run, f"cpu, repeat {run.repeat + 1}", ENDS, self.results, queue)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "results")


def test_a_run_whose_last_job_has_ended_is_trained(folder: Folder) -> None:
    """It was called begun, with 100 % of it."""
    run = a_run()
    chain.note_begun(folder.results / "runs" / run.id, "a-start")
    for end in ENDS:
        folder.write(f"runs/{run.id}/step-{end}.json", {"run": run.id, "step": end})
    found = standing(run, "cpu", ENDS, folder.results, None)
    assert (found.state, found.step, found.jobs_done, found.seconds_left) == ("trained", 300, 3, None)


def test_a_run_whose_lock_is_held_is_running_and_its_end_is_reckoned(folder: Folder) -> None:
    run = a_run()
    folder.write(f"runs/{run.id}/step-100.json", {})
    folder.records(run, 200, ago=30)
    with lock.exclusive(folder.results / "checkpoints" / run.id):
        found = folder.standing(run)
    assert (found.state, found.step, found.jobs_done) == ("running", 200, 1)
    assert found.samples_per_second == pytest.approx(2 * 64)
    assert found.seconds_left == pytest.approx(100 - 30, abs=5)  # 100 steps took 100 s; 100 were left 30 s ago
    chain.note_begun(folder.results / "runs" / run.id, "a-start")
    found = folder.standing(run)  # nobody holds it now
    assert (found.state, found.step) == ("begun", 200)
    assert found.seconds_left == pytest.approx(100, abs=1)


@pytest.mark.parametrize(("busy", "told"), [(0.5, ""), (0.03, "its GPUs were busy for 3% of the last 2 min 00 s")])
def test_what_a_running_run_uses_of_its_node_is_shown_and_an_idle_gpu_is_told(
    folder: Folder, busy: float, told: str
) -> None:
    run, now = a_run(), time.time()
    folder.records(run, 200, ago=0)
    work = folder.results / "checkpoints" / run.id
    path = samples.samples_path(work, 1, 0)
    path.parent.mkdir()
    looks = [
        Look(now - ago, 1.5 * (600 - ago), 3_000_000_000, [[busy, 5e9], [busy, 6e9]]).row() for ago in (180, 110, 30, 0)
    ]
    lines: list[dict[str, Any]] = [{"run": run.id, "host": "c1", "cpus": 2, "seconds": 1.0}, {"looks": looks}]
    path.write_text("".join(attempts.line_of(line) for line in lines))
    with lock.exclusive(work):
        found = folder.standing(run)
    uses = f"c1: 1.5 of 2 CPUs, 3.0 GB of memory, GPUs {busy:.0%} busy, 6.0 GB of GPU memory"
    assert found.uses == (uses,)
    assert found.why.partition(";")[0] == told
    assert f"{found.words}: {uses}" in page.render([found], {}, folder.results, news="", width=200)
    assert folder.standing(run).uses == ()  # nobody trains it now


def test_a_resumed_run_counts_what_was_trained_before(folder: Folder) -> None:
    """From its checkpoint on, until the new attempt has recorded steps of its own."""
    run = a_run()
    for step in (80, 120):
        folder.write(f"checkpoints/{run.id}/step-{step}/complete.json", {})
    (folder.results / f"checkpoints/{run.id}/step-140").mkdir()  # not complete
    assert folder.standing(run).step == 120
    folder.records(run, 110, ago=30)  # by the attempt that was cut short: later steps are not in its records
    newer = attempts.attempt_path(folder.results / "checkpoints" / run.id, 2)
    newer.write_text(attempts.line_of({"time": time.time(), "start": 120}))
    with lock.exclusive(folder.results / "checkpoints" / run.id):
        found = folder.standing(run)
    assert (found.state, found.step, found.samples_per_second) == ("running", 120, None)
    assert "40% of the training is done" in page.whole([found])


def test_a_run_that_failed_says_why(folder: Folder) -> None:
    diverged, broken = a_run(1), a_run(2)
    folder.write(f"runs/{diverged.id}/summary.json", {"status": "failed", "reason": "the loss is not finite"})
    fault = {"error": "no such layer", "rank": 0, "time": 1.0, "mistake": True, "lost_peer": False, "kind": "UserError"}
    folder.write(f"checkpoints/{broken.id}/fault.json", fault)
    assert [(found.state, found.why) for found in map(folder.standing, (diverged, broken))] == [
        ("failed", "the loss is not finite"),
        ("failed", "no such layer"),
    ]


def test_the_page_has_what_runs_first_then_proofs_and_the_whole(folder: Folder) -> None:
    done, running, waits = (a_run(number) for number in (1, 2, 3))
    folder.write(f"runs/{done.id}/summary.json", {"status": "done", "reason": ""})
    folder.records(running, 200, ago=0)
    folder.write("equivalence/gates/good/verdict.json", {"equivalent": True})
    folder.write("equivalence/gates/bad/verdict.json", {"equivalent": False})
    folder.write("equivalence/spot_checks/one/verdict.json", {"runs": [{"status": "passed"}, {"status": "failed"}]})
    proofs = {page.GATES: ["good", "bad", "not yet"], page.SPOT_CHECKS: ["one", "two"]}
    queue = queued(
        [
            QueuedJob("7", "relay_1", "PENDING", "/here", f"rule_segment_wildcards_{waits.id}_100", "Resources"),
            QueuedJob("8", "relay_1", "RUNNING", "/here", f"rule_segment_wildcards_{running.id}_300", "None"),
        ]
    )
    standings = [folder.standing(run, queue) for run in (done, running, waits)]
    lines = page.render(standings, proofs, folder.results, news="queue: 2 jobs", width=100).splitlines()
    assert [line.split()[-1] for line in lines[:1]] == ["left"]
    assert [line.partition("  ")[0] for line in lines[1:4]] == ["cpu, repeat 2", "cpu, repeat 3", "cpu, repeat 1"]
    assert lines[1].split()[3:] == ["running", "67%", "0", "of", "3", "128", "1", "min", "40", "s"]
    assert lines[4:] == [
        "queued: cpu, repeat 3: Resources",
        "gates: 2 of 3 done, 1 against a setting (the report says why)",
        "spot checks: 1 of 2 done, 1 against a setting (the report says why)",
        "runs: 1 running, 1 queued, 1 done; 56% of the training is done",
        "queue: 2 jobs",
    ]
