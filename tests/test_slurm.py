"""The workflow on a real Slurm cluster: shapes as Slurm saw them, the gate across nodes, reruns, refusals, remedies."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from living import until, well
from mini_slurm import MiniSlurm
from recommended import answer_of, recommended, submit, trained
from relay.base.files import read_json
from relay.comparison.answer_files import own_script
from relay.planning.plan import Plan
from relay.preflight.checks import check_all
from relay.preflight.page import page
from relay.run_folder import attempts
from relay.spec.run import Run
from results_tree import rows
from slurm_runs import planned_there, site_file, slurm_command, slurm_snakemake

SHORT = {"device": "cpu", "repeats": 1, "epochs": 1, "runtime_minutes": 10, "gate": {"steps": 20}}
SHORT |= {"spot_checks": {"random_steps": 0, "hops": 0, "end": False}}  # in `test_slurm_jobs.py`
Compared = tuple[Path, dict[str, Any], Plan]  # the folder, the config and the plan of what was compared
SEVERAL = {"strategy": "ddp", "nodes": 2, "devices_per_node": 2, "launcher": "srun"}
pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(900)]


def submitted(cluster: MiniSlurm, before: set[str]) -> dict[str, dict[str, str]]:
    """The executor's jobs submitted since, by what they were for: its comment, such as rule_gate_wildcards_…

    Jobs without a comment are other tests': the cluster is shared by all tests of a process.
    """
    return {job["Comment"]: job for job in cluster.jobs() if job["JobId"] not in before and "Comment" in job}


def known(cluster: MiniSlurm) -> set[str]:
    """The ids of the jobs that Slurm still knows: it forgets old ones."""
    return {job["JobId"] for job in cluster.jobs()}


def ranks_of(folder: Path, run: str) -> list[dict[str, Any]]:
    """What each rank of a run's first attempt recorded of itself."""
    return attempts.read(folder / f"results/checkpoints/{run}", 1).ranks


@pytest.fixture(scope="module")
def compared(cluster: MiniSlurm, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """ddp on two nodes by srun (two ranks on each), from nothing to the report."""
    folder = tmp_path_factory.mktemp("compared")
    config = SHORT | {"comparisons": [SEVERAL]}
    site = site_file(folder)
    well(slurm_snakemake(cluster, folder, config, site=site))
    return folder, config, planned_there(config, site)


def check_shape(job: dict[str, str], found: Plan, run: Run, folder: Path) -> None:
    """What Slurm granted the job, and what its ranks were told, is what the run declares."""
    asked = found.job(run)
    per_node = run.shape.processes_per_node if run.shape.launcher == "srun" else 1
    assert (int(job["NumNodes"]), int(job["NumTasks"])) == (run.shape.nodes, run.shape.nodes * per_node)
    assert int(job["NumCPUs"]) == run.shape.world_size * run.shape.cpus_per_task
    assert job["MinMemoryNode"] == f"{asked.memory_mb}M"
    assert (job["Partition"], job["TimeLimit"]) == ("cpu", "00:10:00")
    ranks = ranks_of(folder, run.id)
    assert len(ranks) == run.shape.world_size
    assert len({rank["host"] for rank in ranks}) == run.shape.nodes
    names = {"OMP_NUM_THREADS": str(run.shape.threads), "SLURM_CPUS_PER_TASK": str(asked.cpus_per_task)}
    names |= {"SLURM_JOB_ID": job["JobId"]}
    told = [rank["environment"] for rank in ranks]
    assert [{name: variables[name] for name in names} for variables in told] == [names] * len(told)
    if run.shape.world_size > 1:
        local = [str(rank) for rank in range(run.shape.processes_per_node)] * run.shape.nodes
        assert [variables["LOCAL_RANK"] for variables in told] == local
        assert [variables["RANK"] for variables in told] == [str(rank) for rank in range(run.shape.world_size)]


def test_two_nodes_train_the_same_as_one_process(cluster: MiniSlurm, compared: Compared) -> None:
    folder, _, found = compared
    jobs = submitted(cluster, set())
    assert [(row["status"], row["equivalent"]) for row in rows(folder / "results")] == [("done", "true")]
    for run in found.runs:
        check_shape(jobs[f"rule_segment_wildcards_{run.id}_{run.length.total_steps}"], found, run, folder)
        verdict = read_json(folder / f"results/equivalence/gates/{found.gate(run)}/verdict.json")
        assert verdict["equivalent"]
        assert verdict["max_loss_difference"] < 1e-9
        summary = read_json(folder / f"results/runs/{run.id}/summary.json")
        assert len(summary["hosts"]) == run.shape.nodes
        assert summary["queue_seconds"] >= 0
        assert min(summary["startup_seconds"], summary["loading_seconds"], summary["cpu_utilisation"]) > 0
        looked_at = {path.name for path in (folder / f"results/checkpoints/{run.id}/usage").glob("attempt-0001-*")}
        assert len(looked_at) == run.shape.nodes, "one file for each node"


def test_a_second_call_finds_nothing_to_do(cluster: MiniSlurm, compared: Compared) -> None:
    folder, config, _ = compared
    printed = well(slurm_snakemake(cluster, folder, config, site=folder / "mini.yaml"))
    assert "Nothing to be done" in printed


def test_the_recommended_script_trains_to_its_end_as_it_stands(cluster: MiniSlurm, compared: Compared) -> None:
    """Within the memory and the time that it asks for; and it is none of the comparison's runs."""
    folder = compared[0]
    (told,) = read_json(folder / "results/answer.json")["answers"]
    (job,), most = submit(cluster, folder, folder / "results/recommendation.sbatch")
    assert job["JobState"] == "COMPLETED", next((folder / "results/logs").glob(f"{told['run']}-*.log")).read_text()
    assert trained(folder, told["run"])
    asked = told["request"]
    assert (job["MinMemoryNode"], job["Partition"]) == (f"{asked['memory_mb']}M", "cpu")
    assert int(job["NumCPUs"]) == asked["nodes"] * asked["tasks_per_node"] * asked["cpus_per_task"]
    assert asked["minutes"] < SHORT["runtime_minutes"]
    assert 0 < most < asked["memory_mb"] * 2**20
    assert len(rows(folder / "results")) == 1
    assert "other jobs may compute on the same nodes" in told["uncertain_because"]
    lines = (folder / "results/recommendation.sbatch").read_text().splitlines()
    (export,) = [line.removeprefix("# ") for line in lines if "scripts/main.py export" in line]
    subprocess.run(["bash", "-c", export], cwd=folder, check=True, capture_output=True)
    assert (folder / "model.safetensors").stat().st_size > 100_000


OWN = """import os, torch.distributed as dist
dist.init_process_group("gloo")
told = [None] * dist.get_world_size()
dist.all_gather_object(told, (os.environ["SLURMD_NODENAME"], os.environ["OMP_NUM_THREADS"]))
if dist.get_rank() == 0:
    print(sorted(told))
dist.destroy_process_group()
"""


def test_a_script_of_ones_own_is_started_by_the_lines_shown_for_it(cluster: MiniSlurm, compared: Compared) -> None:
    folder = compared[0]
    made = recommended(folder, "ddp", "srun")
    job = replace(made.job, tasks_per_node=1, cpus_per_task=2)
    run = replace(made.run, shape=replace(made.run.shape, launcher="torchrun"))
    block = replace(made.script, job=job, output=folder / "own.log").block
    asked = answer_of(folder).request
    asked = replace(asked, tasks_per_node=1, cpus_per_task=2)
    (folder / "your_script.py").write_text(OWN)
    path = f"export PATH={Path(sys.executable).parent}:$PATH"
    (folder / "own.sbatch").write_text("\n".join(["#!/bin/bash", block, path, *own_script(run, asked)]) + "\n")
    (job_told,), _ = submit(cluster, folder, folder / "own.sbatch")
    printed = (folder / "own.log").read_text()
    assert job_told["JobState"] == "COMPLETED", printed
    threads = str(run.shape.threads)
    assert str([(node, threads) for node in ("c1", "c1", "c2", "c2")]) in printed


@pytest.mark.long
def test_a_recommended_chain_on_several_nodes_goes_on_where_a_job_ends(cluster: MiniSlurm, compared: Compared) -> None:
    """Only this runs a recommended chain: ddp on two nodes, in two jobs, the first of which is over at once."""
    folder = compared[0]
    made = recommended(folder, "ddp", "srun")
    text = replace(made.script, jobs=2).render()
    script = folder / "ddp.sbatch"
    over = '[ "$SLURM_ARRAY_TASK_ID" -eq 2 ] || export SLURM_JOB_END_TIME="$(date +%s)"\n'
    script.write_text(text.replace("set -eo pipefail\n", f"set -eo pipefail\n{over}"))
    jobs, most = submit(cluster, folder, script)
    log_of = {job["ArrayTaskId"]: folder / f"results/logs/{made.run.id}-{job['JobId']}.log" for job in jobs}
    logs = [log_of[task].read_text() for task in ("1", "2")]  # an array's last job has the array's id
    assert [job["JobState"] for job in jobs] == ["COMPLETED"] * 2, (jobs, logs)
    assert "(the job's time is nearly over)" in logs[0]
    assert "goes on from the checkpoint of step" in logs[1]
    assert trained(folder, made.run.id)
    assert {(job["NumNodes"], job["NumTasks"]) for job in jobs} == {("2", "4")}
    assert len({rank["host"] for rank in ranks_of(folder, made.run.id)}) == 2
    assert made.job.memory_mb
    assert 0 < most < made.job.memory_mb * 2**20


def test_ranks_are_on_hosts_with_names_and_addresses_of_their_own(compared: Compared) -> None:
    folder, _, found = compared
    for run in (run for run in found.runs if run.strategy.name == "ddp"):
        facts = read_json(folder / f"results/preflight/{found.preflight(run)}/facts.json")
        ranks = facts["ranks"]
        seen = {finding.check: finding for finding in check_all(facts)}
        right = {"nodes", "processes", "rendezvous", "host name", "shared folder", "locks"}
        assert not (right | {"node's disk"}) & seen.keys(), seen
        assert all("lock" in rank for rank in ranks)
        assert facts["allreduce"][-1]["span"] == "node"
        assert "2×2c c1,c2" in page(folder / "results/preflight")
        addresses = [tuple(rank["addresses"]) for rank in ranks]
        assert len(set(addresses)) == 2
        assert not any(address.startswith("127.") for own in addresses for address in own)


def test_what_preflight_finds_keeps_training_from_being_submitted(cluster: MiniSlurm, tmp_path: Path) -> None:
    config = SHORT | {"comparisons": [{"strategy": "cpu"}]}
    before = known(cluster)
    chosen = ("--torch-relay-logdir", str(tmp_path / "of-slurm"))
    status, printed = slurm_snakemake(
        cluster, tmp_path, config, *chosen, site=site_file(tmp_path, node_disk="/no/such/disk")
    )
    assert status == 1
    (kept,) = (tmp_path / "of-slurm").rglob("*.log")  # what `sbatch --output` would be
    assert "/no/such/disk" in kept.read_text()
    assert all("preflight_job" in comment for comment in submitted(cluster, before))
    (row,) = rows(tmp_path / "results")
    assert row["status"] == "skipped"
    assert row["reason"].startswith("preflight: ")
    assert "/no/such/disk" in row["reason"]
    assert printed.count("FAILED: Preflight: is all right on the nodes for ") == 1
    assert len(submitted(cluster, before)) == 1
    assert "/no/such/disk" in printed
    assert "Traceback" not in printed


STUCK = """
import signal, sys, time

if {"snakemake", "remote"} <= set(sys.orig_argv):
    install = signal.signal

    def stuck(number, handler):
        own = number == signal.SIGTERM and callable(handler)
        return install(number, (lambda *_: time.sleep(3600)) if own else handler)

    signal.signal = stuck
"""


def test_after_scancel_no_nested_snakemake_is_left_on_the_node(cluster: MiniSlurm, tmp_path: Path) -> None:
    """SIGTERM finds it where its handler has to wait, as for the scheduler's lock: here the handler always does."""
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    config, before = SHORT | {"comparisons": [{"strategy": "cpu"}]}, known(cluster)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    command = slurm_command(tmp_path, "preflight", "--retries", "0", site=site_file(tmp_path))
    environment = cluster.environment | {"SNAKEMAKE_PROFILE": "", "PYTHONPATH": str(tmp_path)}
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def on_nodes(program: str) -> list[str]:
        return [line for node in ("c1", "c2") for line in cluster.processes(node).values() if program in line]

    try:
        until(lambda: on_nodes("scripts/main.py preflight"), "the preflight runs")
        assert len(on_nodes("-m snakemake")) >= 2
        cluster.run("scancel", *(job["JobId"] for job in submitted(cluster, before).values()))
        until(lambda: not on_nodes("-m snakemake"), "no job is left on the nodes")
    finally:
        driver.kill()
        driver.wait()


def test_nothing_is_submitted_while_something_is_missing(cluster: MiniSlurm, tmp_path: Path) -> None:
    config, before = SHORT | {"comparisons": [{"strategy": "cpu"}]}, known(cluster)
    site = site_file(tmp_path, account_required=True)
    status, printed = slurm_snakemake(cluster, tmp_path, config, site=site)
    assert status == 1
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "account: missing" in line
    assert known(cluster) <= before
