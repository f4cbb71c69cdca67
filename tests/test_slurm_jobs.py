"""On a real Slurm: every strategy from its gate to the report, whole nodes, broken nodes, and tasks that jobs see."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import debian_packages
import mini_slurm
import stacks
from living import well
from mini_slurm import NODE_DISK, MiniSlurm, Node, Partition
from plans import CPU, DDP, planned
from relay.driver.job_requests import JobRequests
from relay.spec.run import Run
from relay.spec.strategy_files import find
from results_tree import rows
from slurm_runs import PARTITIONS, WHEELS, planned_there, site_file, site_in, slurm_snakemake
from test_task_packages import CONFIG, OWN

SHORT = {"device": "cpu", "repeats": 1, "epochs": 0.3, "runtime_minutes": 20, "warmup_steps": 2, "gate": {"steps": 20}}
ACROSS = {"nodes": 2, "launcher": "srun"}
# A network that every strategy can divide.
GPT = {"task": "gpt-deep-tiny", "task_options": {"depth": 4}}
EACH: list[dict[str, Any]] = [
    {"strategy": "single_gpu"},
    {"strategy": "data_parallel", "devices_per_node": 2},
    {"strategy": "mps", "processes_per_device": 2},
    {"strategy": "model_parallel", **ACROSS},
    {"strategy": "model_parallel_in_process", "devices_per_node": 2},
    {"strategy": "pipeline", "options": {"schedule": "1f1b"}, **ACROSS},
    {"strategy": "pipeline_ddp", "devices_per_node": 2, **ACROSS},
    {"strategy": "tensor_parallel", "devices_per_node": 2, "launcher": "torchrun"},
    {"strategy": "fsdp", **ACROSS},
    {"strategy": "fsdp_tensor_parallel", "devices_per_node": 2, **ACROSS},
    {"strategy": "lightning_ddp", **ACROSS},
]
EXPERTS = [{"strategy": "cpu"}, {"strategy": "expert_parallel", **ACROSS}]
DEEPSPEED = ("zero1", "zero2", "zero3", "zero3_offload_cpu", "zero3_offload_nvme", "lightning_zero3")
HOROVOD = [
    {"strategy": "horovod", "nodes": 2, "launcher": ["srun", "torchrun"]},
    {"strategy": "horovod", "devices_per_node": 2, "launcher": ["spawn", "horovodrun"]},
]
# Of stacks whose wheels are built ahead, and installed on the nodes' own disks, which no network leads to.
FROM_WHEELS = {"deepspeed": [{"strategy": name, **ACROSS} for name in DEEPSPEED], "horovod": HOROVOD}
ELSEWHERE = {"ddp"}  # in `test_slurm.py`
ON_GPUS = {"single_gpu", "data_parallel", "model_parallel_in_process"}


TRAINED = {"dense": GPT | {"comparisons": EACH}, "experts": {"task": "gpt-moe-tiny", "comparisons": EXPERTS}}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", TRAINED)
def test_every_strategy_goes_through_gate_and_training(cluster: MiniSlurm, tmp_path: Path, model: str) -> None:
    """The only whole run of these strategies as Slurm's jobs, and of spot checks there."""
    site, config = site_file(tmp_path), SHORT | TRAINED[model]
    well(slurm_snakemake(cluster, tmp_path, config, site=site, timeout_seconds=1700))
    found = {row["strategy"]: row for row in rows(tmp_path / "results")}
    ran = {name for name in found if name not in ON_GPUS}
    told = {name: (found[name]["status"], found[name]["equivalent"]) for name in ran}
    assert told == dict.fromkeys(ran, ("done", "true"))
    for name in set(found) & ON_GPUS:
        assert (found[name]["status"], "needs a GPU" in found[name]["reason"]) == ("skipped", True)
    summaries = [*(tmp_path / "results/runs").glob("*/summary.json")]
    assert len(summaries) == len(ran)
    for path in summaries:
        assert len(json.loads(path.read_text())["hosts"]) == Run.read(path.with_name("run.json")).shape.nodes


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stack", FROM_WHEELS)
def test_a_stack_trains_from_its_wheel_by_every_launcher(cluster: MiniSlurm, tmp_path: Path, stack: str) -> None:
    """No other test starts DeepSpeed or Horovod under Slurm."""
    stacks.require(stack)
    debian_packages.require()
    site = site_file(tmp_path, environment=WHEELS, network_interface="eth0")
    config = SHORT | {"task": "lenet-digits", "comparisons": FROM_WHEELS[stack]}
    config |= {"spot_checks": {"random_steps": 0, "hops": 0, "end": False}}
    well(slurm_snakemake(cluster, tmp_path, config, site=site, timeout_seconds=1700))
    found = rows(tmp_path / "results")
    assert {row["strategy"] for row in found} == {each["strategy"] for each in FROM_WHEELS[stack]}
    assert {(row["status"], row["equivalent"]) for row in found} == {("done", "true")}
    on_disk = {row["strategy"] for row in found if float(row["disk_bytes_written"] or 0) > 0}
    assert on_disk == ({"zero3_offload_nvme"} if stack == "deepspeed" else set())
    logs = [path.read_text() for path in (tmp_path / "results/logs").rglob("*.log")]
    assert any(f"environment: {NODE_DISK}" in text and f"{stack}-" in text for text in logs)


def test_no_strategy_is_left_out() -> None:
    asked = [*EACH, *EXPERTS, *(each for every in FROM_WHEELS.values() for each in every)]
    assert {row["strategy"] for row in asked} | ELSEWHERE == set(find())


# On a real Slurm cluster: jobs without a request for memory, GPUs by --gres, whole nodes


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.timeout(600)
def test_steps_see_the_gpus_that_they_use_of_a_whole_node(tmp_path_factory: pytest.TempPathFactory) -> None:
    """GPUs by --gres, and no request for memory."""
    folder = tmp_path_factory.mktemp("whole")
    partition = Partition("gpu", ("g1",), default=True, whole_nodes=True)
    with MiniSlurm(folder / "cluster", [Node("g1", gpus=4)], [partition]) as cluster:
        partitions = [PARTITIONS[1] | {"whole_nodes": True, "asks_memory": False}]
        site = site_file(folder, partitions=partitions, cpus_per_gpu=1, gpu_request="gres", node_disk="/tmp")
        by_srun = DDP | {"launcher": "srun"}
        config = {"repeats": 1, "runtime_minutes": 10, "device": "cuda", "comparisons": [by_srun]}
        status, printed = slurm_snakemake(cluster, folder, config, "preflight", "--retries", "0", site=site)
        (job,) = [job for job in cluster.jobs() if "Comment" in job]
    assert status == 1, printed  # the cluster's GPUs are no real ones, so that a look at them fails
    (name,) = planned_there(config, site).preflights
    told = json.loads((folder / f"results/preflight/{name}/collected.json").read_text())
    assert (job["NumTasks"], job["NumCPUs"]) == ("2", "8")
    assert job["TresPerNode"].endswith("gpu:fake:4")
    assert "MinMemoryNode" not in job  # the cluster gives a default for each CPU
    assert "memory information" not in printed
    assert [len(rank["environment"]["CUDA_VISIBLE_DEVICES"].split(",")) for rank in told["ranks"]] == [2, 2]


# What the driver makes of jobs that fail on a cluster


@pytest.mark.slow
def test_a_node_is_left_out_by_jobs_that_others_can_take(cluster: MiniSlurm, tmp_path: Path, monkeypatch) -> None:
    """Of two nodes, a job of both needs the broken one as well."""
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    monkeypatch.chdir(tmp_path)
    made = planned(DDP | {"nodes": [1, 2]}, CPU, device="cpu", site=site_in(tmp_path))
    one, both = (next(run for run in made.runs if run.shape.devices == 2 * nodes) for nodes in (1, 2))
    jobs = JobRequests(made)
    assert jobs.leave_out(one, "c1")
    assert not jobs.leave_out(both, "c1")
    assert "--exclude=c1" in jobs.resources(one)["slurm_extra"].split()
    assert not jobs.leave_out(one, "c2")
    assert "--exclude=c1" in jobs.resources(one)["slurm_extra"].split()
    assert not any("--exclude" in jobs.resources(run)["slurm_extra"] for run in made.runs if run.shape != one.shape)


# A task that only the cluster's own software can import: a job looks at it, and then all is planned and trained


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, str]:
    """Real environment modules, one of them with a Python that has the task's package; the variables of a shell."""
    mini_slurm.require({"modulecmd": "environment-modules"})
    theirs = tmp_path / "theirs"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(theirs)], check=True)
    (packages,) = theirs.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(sysconfig.get_path("purelib"))
    (packages / "tiny_points.py").write_text("COUNT = 64\n")
    (tmp_path / "modulefiles/torch").mkdir(parents=True)
    (tmp_path / "modulefiles/torch/2.0").write_text(f"#%Module1.0\nprepend-path PATH {theirs}/bin\n")
    return {"BASH_ENV": "/usr/share/modules/init/bash", "MODULEPATH": str(tmp_path / "modulefiles")}


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_a_job_looks_where_the_login_node_cannot(cluster: MiniSlurm, modules: dict[str, str], tmp_path: Path) -> None:
    """Only this plans and trains what a job has looked at."""
    (tmp_path / "my_task.py").write_text(OWN)
    site = site_file(tmp_path, modules=["torch/2.0"], environment={"mode": "modules"})
    config = CONFIG | {"repeats": 1, "runtime_minutes": 10, "comparisons": [{"strategy": "cpu"}]}
    printed = well(slurm_snakemake(cluster, tmp_path, config, "-n", site=site, variables=modules))
    assert "its model and its data are not known yet" in printed
    assert "No module named 'tiny_points'" in printed
    assert not list((tmp_path / "results").glob("cards/*.json"))

    well(slurm_snakemake(cluster, tmp_path, config, site=site, variables=modules))
    (card,) = (tmp_path / "results").glob("cards/*.json")
    assert '"parameters": 20' in card.read_text()
    (row,) = rows(tmp_path / "results")
    assert (row["status"], row["equivalent"]) == ("done", "true"), row["reason"]
