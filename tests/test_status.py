"""`snakemake status`: how each run of a plan stands, from its files and Slurm's queue."""

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text

from refusals import refusal
from relay.base import ending, lock
from relay.base.ending import Ending
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.base.plain_text import plain_text
from relay.config.config import load
from relay.environments import pip
from relay.planning import handed
from relay.planning.plan import Plan
from relay.process import system
from relay.run_folder import attempts, faults, run_chain, samples
from relay.run_folder.samples import Look
from relay.spec.run import Run
from relay.spec.tasks import BUILT_IN, Looked
from relay.status import page
from relay.status.runs import Standing, standing
from specifications import made
from summaries import left_records

LOOKED = Looked.read(BUILT_IN / "cards" / "lenet-digits.json")
ENDS = (100, 200, 300)


def a_run() -> Run:
    steps = {"steps_per_epoch": 20, "total_steps": 300, "evaluate_every_steps": 300}
    its = {"task": LOOKED.task, "dataset": LOOKED.dataset, "strategy": "cpu", "setting_id": "cpu-setting"}
    return made(Run, id="cpu-1", seed=1, repeat=0, global_batch_size=64, epochs=15.0, **steps, **its)


class Folder:
    """The files of runs, as their jobs leave them."""

    def __init__(self, results: Path) -> None:
        self.results = results

    def write(self, path: str, value: Any) -> None:
        write_json(self.results / path, value)

    def records(self, run: Run, step: int, *, ago: float) -> None:
        """An attempt from step 100 that has come to `step` in 100 s, and wrote that so many seconds ago."""
        now = time.time() - ago
        lines = [{"time": now - 100, "start": 100}, {"time": now, "blocks": [[step - 10, step, 5.0, 0.1]]}]
        left_records(self.results / "checkpoints" / run.id, 1, *lines)

    def standing(self, run: Run, queue: Any = None) -> Standing:
        return standing(run, f"cpu, repeat {run.repeat + 1}", ENDS, self.results, queue)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "results")


def test_a_run_whose_last_job_has_ended_is_trained(folder: Folder) -> None:
    """It was called begun, with 100 % of it."""
    run = a_run()
    run_chain.note_begun(folder.results / "runs" / run.id, "a-start")
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
    run_chain.note_begun(folder.results / "runs" / run.id, "a-start")
    found = folder.standing(run)  # nobody holds it now
    assert (found.state, found.step) == ("begun", 200)
    assert found.seconds_left == pytest.approx(100, abs=1)


@pytest.mark.parametrize(("busy", "told"), [(0.5, ""), (0.03, "its GPUs were busy for 3% of the last 2 min 00 s")])
def test_what_a_running_run_uses_of_its_node_is_shown_and_an_idle_gpu_is_told(folder: Folder, busy, told) -> None:
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
    shown = page.render([found], {}, folder.results, news="", width=200)
    assert re.search(rf"{re.escape(f'{found.words}: {uses}')}, 2 steps/s, (1 min )?[0-9]+ s left\n", shown), shown
    assert folder.standing(run).uses == ()  # nobody trains it now


def test_a_resumed_run_counts_what_was_trained_before(folder: Folder) -> None:
    """From its checkpoint on, until the new attempt has recorded steps of its own."""
    run = a_run()
    for step in (80, 120):
        folder.write(f"checkpoints/{run.id}/step-{step}/manifest.json", {})
    (folder.results / f"checkpoints/{run.id}/step-140").mkdir()  # not complete
    assert folder.standing(run).step == 120
    folder.records(run, 110, ago=30)  # by the attempt that was cut short: later steps are not in its records
    left_records(folder.results / "checkpoints" / run.id, 2, {"time": time.time(), "start": 120})
    with lock.exclusive(folder.results / "checkpoints" / run.id):
        found = folder.standing(run)
    assert (found.state, found.step, found.samples_per_second) == ("running", 120, None)
    assert "40% of the training is done" in page.whole([found])


# What the terminal keeps of the Slurm executor's words, held against the installed version of it


def test_a_table_has_no_control_characters() -> None:
    assert plain_text(Text("a\x1b[2Jb\u202e"), width=80) == r"a\x1b[2Jb\u202e"


def test_nor_have_errors_and_what_jobs_and_pip_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor passwords of addresses: all who can read the results see them."""
    harm, shown = "a\x1b]0;b\x07 https://me:secret@x/y", r"a\x1b]0;b\x07 https://***@x/y"
    assert str(UserError(harm)) == shown
    faults.record(tmp_path, RuntimeError(harm))
    assert "secret" not in next(tmp_path.glob("fault*")).read_text()
    assert faults.collect(tmp_path).error == f"RuntimeError: {shown}"
    ending.record(Ending(1, harm), tmp_path / "log")
    assert (ending.read(tmp_path / "log") or Ending(0, "")).what == shown
    assert pip.complaint([f"ERROR: {harm}"]) == shown
    monkeypatch.setenv("TORCH_HOME", harm)
    assert system.recorded_variables()["TORCH_HOME"] == shown


def test_while_todays_config_cannot_be_planned_it_is_of_the_last_call(tmp_path: Path, monkeypatch) -> None:
    """A task's file with a typo, say."""
    monkeypatch.chdir(tmp_path)
    config, typo = load({"repeats": 2}), UserError("mine.py:54: no valid Python")
    workflow = SimpleNamespace(config_settings=SimpleNamespace())
    handed.hand_over(Plan(config, tmp_path, None, ["cpu"]), selftest=False, workflow=workflow)
    assert handed.last(config, typo).warnings == ["mine.py:54: no valid Python; shown is the plan of the last call"]
    assert refusal(handed.last, load({"repeats": 3}), typo) == typo.args[0]
    (handed.FOLDER / handed.PLAN).write_text('{"plan": {}}')  # of another version
    assert refusal(handed.last, config, typo) == typo.args[0]
