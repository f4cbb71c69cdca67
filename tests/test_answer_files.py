"""The answer's files: `answer.json` for programs, and a batch script that asks for what was measured."""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.comparison.request import Request, request
from relay.run_folder.summary import Summary
from relay.slurm.batch_script import BatchScript
from relay.spec.job import Job
from relay.spec.run import Run
from results_tree import REFUSED, Tree

STEPS = 44 * 64  # samples of a run


def asked(tree: Tree, job: Job | None = None, *, speed: float = 100.0, **changes: Any) -> Request:
    longer = {name: changes.pop(name) for name in ("least_minutes", "times") if name in changes}
    (identity,) = tree.setting("cpu", [speed], **changes)
    run = Run.read(tree.root / "runs" / identity / "run.json")
    summary = Summary.of(json.loads((tree.root / f"runs/{identity}/summary.json").read_text()))
    return request(run, [summary], job, **longer)


def lasting(steps: float, allocated: float, starts: float = 0.0, jobs: int = 1) -> dict[str, Any]:
    """What a summary says of a run's seconds."""
    parts = {"train_seconds": steps, "allocated_seconds": allocated, "startup_seconds": starts, "attempts": jobs}
    return parts | {"loading_seconds": 0.0}


def test_memory_is_the_measured_peak_with_a_stated_margin(tree: Tree) -> None:
    """300 MiB of each process, 512 for what starts them, a quarter more."""
    found = asked(tree, devices_per_node=2)
    assert found.memory_mb == round((2 * 300 + 512) * 1.25)
    assert "300 MiB measured" in found.memory_why
    assert "25 % more" in found.memory_why
    with_workers = asked(tree, data_workers=2, loader="dataloader", name="workers")
    assert with_workers.memory_mb == round((3 * 300 + 512) * 1.25)
    looked_at = {"peak_node_memory_bytes": 700 * 2**20}
    seen = asked(tree, data_workers=2, loader="dataloader", name="seen", summary=looked_at)
    assert seen.memory_mb == round((700 + 512) * 1.25)
    missed = asked(tree, data_workers=2, loader="dataloader", name="missed", summary={"peak_node_memory_bytes": 2**20})
    assert missed.memory_mb == with_workers.memory_mb


def test_memory_is_never_more_than_the_measured_jobs_had(tree: Tree) -> None:
    assert asked(tree, Job(memory_mb=900, minutes=60)).memory_mb == 900
    assert asked(tree, Job(memory_mb=9000, minutes=60), name="more").memory_mb == 1015
    assert asked(tree, Job(memory_mb=None, minutes=60), name="whole").memory_mb is None
    assert asked(tree, Job(memory_mb=1, minutes=60, whole_node_gpus=4), name="node").gpus_per_node == 4


def test_time_is_measured_speed_times_the_work_with_a_margin(tree: Tree) -> None:
    """44 steps of 64 at 100 a second are 28.16 s; a quarter and a minute more."""
    found = asked(tree)
    assert (found.minutes, found.jobs) == (2, 1)
    slow = asked(tree, speed=STEPS / 3000, name="slow", summary=lasting(3000.0, 3600.0))
    assert slow.minutes == (3600 * 1.25 + 60) / 60
    assert "3,000 s of training" in slow.time_why
    assert asked(tree, Job(memory_mb=1, minutes=90), name="least", least_minutes=60).minutes == 60


def test_a_longer_training_evaluates_more_often_and_starts_as_often(tree: Tree) -> None:
    """Of 100 s beside the steps 40 are the start: ten times the epochs take 40 + 10 * 60 s beside 10 * 3,000 s."""
    found = asked(tree, speed=STEPS / 3000, times=10, summary=lasting(3000.0, 3100.0, 40.0))
    assert found.minutes == math.ceil((30_640 * 1.25 + 60) / 60)
    assert found.time_why.startswith("for 20 epochs, 30,000 s of training in the slowest repeat, 640 s for starts")


def test_each_job_compiles_once(tree: Tree) -> None:
    """The steps take 100 s by their speed, and took 160 s: the first one has compiled for 60 s."""
    compiled = lasting(160.0, 200.0, 40.0)
    found = asked(tree, speed=STEPS / 100, times=10, summary=compiled)
    assert found.expected_seconds == pytest.approx(100 + 10 * 100)
    chain = asked(tree, Job(memory_mb=1, minutes=10), speed=STEPS / 100, times=10, name="chain", summary=compiled)
    assert chain.jobs == math.ceil(1000 * 1.25 / (600 - 60 - 60 - 100 * 1.25)) == 4
    assert chain.expected_seconds == pytest.approx(3 * 100 + 10 * 100)  # without the margin, three jobs will do
    again = asked(tree, speed=STEPS / 100, times=2, name="again", summary=lasting(220.0, 300.0, 80.0, jobs=2))
    assert again.expected_seconds == pytest.approx(2 * 300)


def test_a_training_longer_than_the_queues_jobs_becomes_a_chain(tree: Tree) -> None:
    """Evaluations are spread over the jobs, each of which has its own start."""
    long = lasting(3000.0, 3020.0, 20.0, jobs=2)
    found = asked(tree, Job(memory_mb=1000, minutes=20), speed=STEPS / 3000, summary=long)
    useful = 20 * 60 - 60 - 60 - 10 * 1.25  # starts, saving, and what a job needs outside of its steps
    assert (found.minutes, found.jobs) == (20, -(-3000 * 1.25 // useful))
    assert "more than the 20 minutes" in found.time_why
    hour = lasting(3600.0, 4260.0, 60.0)
    longer = asked(tree, Job(memory_mb=1000, minutes=600), speed=STEPS / 3600, times=90, name="hour", summary=hour)
    assert longer.jobs == math.ceil(90 * (3600 + 600) * 1.25 / (600 * 60 - 60 - 60 - 60 * 1.25)) == 14


def script(job: Job, jobs: int = 1, output: str = "/tmp/x-%j.log") -> str:
    words: dict[str, Any] = {"command": ["python", "train.py", "--run", "a b"], "comments": ["Why."]}
    return BatchScript(name="relay-x", job=job, jobs=jobs, folder=Path("/tmp"), output=Path(output), **words).render()


def test_the_block_asks_for_everything_that_the_job_declares() -> None:
    job = Job(
        nodes=2, tasks_per_node=4, cpus_per_task=6, memory_mb=32000, gpus_per_node=4, gpu_name="a100", minutes=1530,
        partition="gpu", account="def-me", qos="normal", constraint="ib",
    )  # fmt: skip
    lines = [line.removeprefix("#SBATCH ") for line in script(job).splitlines() if line.startswith("#SBATCH ")]
    assert lines == [
        *("--job-name=relay-x", "--partition=gpu", "--account=def-me", "--qos=normal", "--constraint=ib", "--nodes=2"),
        *("--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6", "--gpus-per-node=a100:4", "--mem=32000M"),
        *("--time=1-01:30:00", "--output=/tmp/x-%j.log"),
    ]
    assert script(job).splitlines()[-1] == "exec python train.py --run 'a b'"
    assert '#SBATCH --output="/50%%jobs x/y-%j.log"\n' in script(job, output="/50%jobs x/y-%j.log")
    loads = script(replace(job, environment={"mode": "modules", "modules": ["python/3.11"], "stack_modules": ["cuda"]}))
    assert "\nmodule purge; module load python/3.11 cuda\n" in loads


@pytest.mark.parametrize(("task", "status", "expected"), [(1, 75, 0), (3, 75, 75)])
def test_a_chains_job_that_has_saved_in_time_has_done_its_part(tmp_path: Path, task, status, expected) -> None:
    """Status 75 is an interruption. It is a failure of the last job alone, after which nothing goes on."""
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@"\nexit {status}\n')
    (tmp_path / "python").chmod(0o755)
    text = script(Job(memory_mb=1, minutes=5), jobs=3)
    assert "#SBATCH --array=1-3%1" in text
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(task)}
    done = subprocess.run(["bash", "-c", text], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (expected, f"train.py --run a b --attempt {task}")


def test_the_files_are_written_and_say_what_was_decided(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0, 999.0], name="fast", cpus_per_task=2, threads=2)
    tree.setting("cpu", [900.0, 901.0, 899.0], name="slow", cpus_per_task=2)
    tree.setting("ddp", [9000.0, 9001.0, 9002.0], devices_per_node=2, verdict=REFUSED)
    tree.rules = {"site_flags": ["--reservation=course", "--mail-type=END,FAIL", "--mail-user=me@example.org"]}
    assert tree.compare() == 0
    value = json.loads((tree.root / "answer.json").read_text())
    (told,) = value["answers"]
    assert (value["format"], value["confidence"], value["margin"]) == (2, 0.95, 0.03)
    assert (told["certainty"], told["recommended"]["setting"]) == ("winner", "fast")
    assert told["recommended"]["runs"] == ["fast-r0", "fast-r1", "fast-r2"]
    speed = told["recommended"]["samples_per_second"]
    assert speed["low"] < speed["value"] < speed["high"]
    assert told["runner_up"]["setting"] == "slow"
    assert [each["category"] for each in told["left_out"]] == ["struck out"]
    text = (tree.root / "recommendation.sbatch").read_text()
    assert set(told["sbatch"]) <= set(text.splitlines())
    assert {f"#SBATCH {flag}" for flag in tree.rules["site_flags"]} <= set(told["sbatch"])
    assert "--cpus-per-task=2" in text
    assert "#     export OMP_NUM_THREADS=2\n#     python your_script.py\n" in text
    assert f"scripts/main.py export --run recommended-fast --results {tree.root.resolve()} --output model" in text
    assert f"Its checkpoints will be in {tree.root.resolve()}/checkpoints/recommended-fast." in text
    assert f"--run recommended-fast --first 0 --last 44 --results {tree.root.resolve()}" in text
    # The recommended run is none of the comparison's, and goes on where that is made again.
    run = tree.root / "runs" / "recommended-fast"
    assert Run.read(run / "run.json").seed == 1
    started = (run / "start.json").read_text()
    assert tree.compare() == 0
    assert (run / "start.json").read_text() == started
    assert len(tree.rows()) == 3


def test_with_nothing_to_recommend_the_script_says_why_and_fails(tree: Tree) -> None:
    tree.setting("ddp", [90000.0, 90010.0], devices_per_node=2, verdict=REFUSED)
    assert tree.compare() == 0
    script = tree.root / "recommendation.sbatch"
    assert "losses differ" in script.read_text()
    done = subprocess.run(["bash", script], capture_output=True, text=True)
    assert (done.returncode, "nothing to recommend" in done.stderr) == (1, True)
    (told,) = json.loads((tree.root / "answer.json").read_text())["answers"]
    assert (told["recommended"], told["sbatch"]) == (None, [])
