"""Scripts as they stand on a Slurm cluster: over two nodes by torchrun and by srun, and as a chain of short jobs."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from living import well
from mini_slurm import MiniSlurm
from relay.base.files import write_json
from relay.planning.plan import Plan
from relay.run_folder.results_folder import check_layout
from results_tree import rows
from slurm_runs import planned_there, site_file, slurm_snakemake

ONCE: dict[str, Any] = {"device": "cpu", "repeats": 1, "runtime_minutes": 10}
TRAIN = """
    import os
    import socket

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, 61):
        loss = net(torch.randn(16, 20)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    place = f"rank-{dist.get_rank()}-{os.environ['SLURM_CPUS_PER_TASK']}-{os.environ['OMP_NUM_THREADS']}"
    open(place, "w").write(socket.gethostname())
    dist.destroy_process_group()
"""
CHAIN = """
    import os
    import time

    import torch

    from relay.chain import resume

    if not os.path.exists("begun"):  # the first job's time is over at once
        open("begun", "w").close()
        os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()))

    net = torch.nn.Linear(4, 4)
    run = resume(model=net, save_minutes=0.1)
    for step, _ in run.steps(range(10_000), until=100):
        time.sleep(0.05)
        run.after(step)
    open("done", "w").write(str(run.step))
"""


def folders(results: Path) -> list[Path]:
    return sorted((results / "checkpoints").glob("*/folder"))


def seen(made: Plan) -> None:
    """The nodes were looked at, and all is right."""
    check_layout(Path("results"))
    for look in made.preflights.values():
        write_json(Path(f"results/preflight/{look.id}/facts.json"), {"complete": True, "findings": []})
        asked = json.dumps(look.to_dict(made.job(look)))
        Path(f"results/preflight/{look.id}/preflight.json").write_text(f"{asked}\n")


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_a_script_is_measured_on_two_nodes_by_torchrun_and_by_srun(cluster: MiniSlurm, tmp_path: Path) -> None:
    """Only this runs a script over several nodes."""
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    read = {"step": "step ([0-9]+)", "loss": "loss ([0-9.]+)"}
    common = {"read": read, "nodes": 2, "devices_per_node": 2, "cpus_per_task": 2, "threads": 1}
    common |= {"global_batch_size": 64}
    by_torchrun = {"command": "torchrun train.py", "name": "by-torchrun", **common}
    by_srun = {"command": "python train.py", "name": "by-srun", "launcher": "srun", **common}
    config = ONCE | {"comparisons": [by_torchrun, by_srun]}
    well(slurm_snakemake(cluster, tmp_path, config, site=site_file(tmp_path)))
    found = rows(tmp_path / "results")
    assert [(row["status"], row["world_size"], bool(row["unproven"])) for row in found] == [("done", "4", True)] * 2
    assert all(float(row["samples_per_second"]) > 0 for row in found)
    for folder in folders(tmp_path / "results"):
        ranks = {path.name: path.read_text() for path in folder.glob("rank-*")}
        assert sorted(ranks) == [f"rank-{rank}-2-1" for rank in range(4)]
        assert len({*ranks.values()}) == 2, "two processes on each of two nodes"
    script = (tmp_path / "results" / "recommendation.sbatch").read_text()
    assert "train.py" in script
    assert "--nodes=2" in script
    assert "torchrun --nnodes=2 --nproc-per-node=2" in script or "RANK=$SLURM_PROCID" in script


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_a_chain_goes_on_as_jobs_until_the_script_has_ended(cluster: MiniSlurm, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(CHAIN))
    config = ONCE | {"right_size": False, "comparisons": [{"command": "python train.py", "name": "long"}]}
    site = site_file(tmp_path)
    seen(planned_there(config, site))
    printed = well(slurm_snakemake(cluster, tmp_path, config, "chain", site=site))
    assert "(the job's time is nearly over); goes on with attempt 2" in printed
    (folder,) = folders(tmp_path / "results")
    assert (folder / "done").read_text() == "100"
    (path,) = (tmp_path / "results" / "runs").glob("*/summary.json")
    summary = json.loads(path.read_text())
    assert summary["attempts"] >= 2
    assert summary["steps_reached"] == 100
    assert f"long has ended, in {summary['attempts']} jobs" in printed
