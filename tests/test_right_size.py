"""Jobs ask for what finished runs needed, with a margin; jobs that were killed for memory ask for more."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from plans import CPU, ROOT, planned
from relay.base.files import write_json
from relay.driver.job_requests import JobRequests
from relay.planning import handed
from relay.planning.handed import prepare
from relay.planning.plan import Plan
from relay.planning.table import render
from relay.run_folder.summary import FILE
from relay.spec.job import Job
from relay.spec.run import Run
from slurm_runs import site_in
from summaries import summary_of
from test_chain_forecasts import leave

PEAK = 300 * 2**20
NEEDED_MB = round((300 + 512) * 1.25)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    return tmp_path / "results"


def made(results: Path) -> Plan:
    site = site_in(results.parent)  # 900 MB for each CPU, nodes of unknown memory
    return planned(CPU | {"cpus_per_task": 2}, repeats=2, device="cpu", site=site, results=results, may="look")


def finish(results: Path, found: Plan, run: Run) -> None:
    """The run is done: 30 s to start, 2 s for each of its steps, 8 s to save."""
    leave(results, run, [(30.0, 2.0, 8.0, run.length.total_steps)])
    run.write(results / "runs" / run.id / "run.json", found.job(run))
    summary = summary_of(run=run.id, peak_main_memory_bytes=PEAK)
    write_json(results / "runs" / run.id / FILE, summary.as_dict())


def asked(found: Plan, run: Run) -> tuple[int | None, int]:
    job = found.job(run)
    return job.memory_mb, job.minutes


def declared(results: Path, run: Run) -> int | None:
    """The memory that a run's jobs find declared, and check against what Slurm granted."""
    job = Job.read(results / "runs" / run.id / "run.json")
    return job.memory_mb


def test_a_further_repeat_asks_for_what_the_first_needed(results: Path) -> None:
    """30 + 440 × 2 + 5 + 8 s are 923 s, a quarter more and 60 s: 21 minutes."""
    before = made(results)
    finish(results, before, before.runs[0])
    found = made(results)
    assert asked(found, found.runs[1]) == (NEEDED_MB, 21)
    resources = JobRequests(found).resources(found.runs[1])
    assert (resources["mem_mb"], resources["runtime"]) == (NEEDED_MB, 21)
    printed = " ".join(render(found).split())
    memory = f"{NEEDED_MB} MB (declared: 1800; measured: 300 MiB"
    assert f"by measurement: cpu (1 proc, 2 threads, resident): {memory}" in printed
    assert "21 minutes (declared: 60; measured: 30 s to start, 885 s for 440 steps and 8 s to save in the" in printed


@pytest.mark.slow
def test_jobs_have_their_calls_plan_and_a_finished_run_keeps_what_it_asked_for(results: Path, monkeypatch) -> None:
    before = made(results)
    prepare(before)
    finish(results, before, before.runs[0])
    found = made(results)
    prepare(found)
    monkeypatch.setattr(handed, "FOLDER", results / "code/call")
    settings = SimpleNamespace(configfiles=["mine.yaml"])
    for _ in range(2):  # the next call's takes the place of the last one's
        handed.hand_over(found, selftest=False, workflow=SimpleNamespace(config_settings=settings))
    assert settings.configfiles == []
    assert (results / "code/call/scripts/main.py").read_bytes() == (ROOT / "scripts/main.py").read_bytes()
    _, in_a_job = handed.handed()
    assert in_a_job.runs == found.runs
    assert asked(in_a_job, in_a_job.runs[1]) == (NEEDED_MB, 21)
    jobs = [Job.read(results / "runs" / run.id / "run.json") for run in found.runs]
    assert [(job.memory_mb, job.minutes) for job in jobs if job] == [(1800, 60), (NEEDED_MB, 21)]


def test_a_job_killed_for_memory_asks_for_twice_as_much_and_so_do_its_repeats(results: Path) -> None:
    plan = made(results)
    prepare(plan)
    found, (first, second) = JobRequests(plan), plan.runs
    assert found.more_memory(first, 1800) == 3600
    assert declared(results, first) == 3600
    assert declared(results, second) == 1800  # it may be in the queue, and has what its file says
    assert [found.resources(run)["mem_mb"] for run in (first, second)] == [3600, 3600]
    assert found.more_memory(second, 1800) == 3600  # it was submitted before
    assert found.more_memory(second, 3600) == 7200
    assert declared(results, second) == 7200
    later = made(results)
    assert asked(later, later.runs[0])[0] == 7200
    assert "7200 MB, because a job was killed for memory" in " ".join(render(later).split())
    (gate,) = plan.gates.values()
    assert found.resources(gate)["mem_mb"] == 1800


def test_a_job_asks_for_no_more_than_a_node_has(results: Path) -> None:
    found = made(results)
    (partition, *_) = found.site.partitions
    small = partition.model_copy(update={"memory_mb_per_node": 3000})
    jobs = JobRequests(replace(found, site=found.site.model_copy(update={"partitions": [small]})))
    assert jobs.more_memory(found.runs[0], 1800) == 3000
    assert jobs.more_memory(found.runs[0], 3000) == 3000
    assert jobs.more_memory(found.runs[0], 0) is None  # of a partition that gives memory by itself
