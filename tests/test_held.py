"""What the driver knows of its machine, and of the allocation that it runs in, before any job starts."""

import json
import math
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from living import until
from mini_slurm import MiniSlurm
from plans import ROOT, plan
from refusals import refusal
from relay.base.errors import UserError
from relay.config.config import load
from relay.driver.end_jobs import end_before
from relay.launch import gpus
from relay.planning.plan import Plan
from relay.slurm import allocation
from relay.slurm.held import LAST_SECONDS, Held
from relay.spec.job import Job
from relay.spec.site import Site, load_site
from relay.workflow import unready
from support.fake_cuda import driver_of_gpus

INSIDE = {"SLURMD_NODENAME": "c1"}
TWO_NODES = {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8(x2)", "SLURM_JOB_NUM_NODES": "2"}
TWO = "{task: lenet-digits, repeats: 1, gate: {steps: 20}, comparisons: [{strategy: ddp, nodes: [2, 3]}]}"


def held(*, seconds: float | None = None, **changed: object) -> Held:
    known = {"job_id": "7", "nodes": 2, "cpus": 4, "gpus": 1, "memory_mb": 4000, "inside": True}
    ends = None if seconds is None else time.time() + seconds
    return Held(**{**known, "ends_at": ends, **changed})  # type: ignore[arg-type]


def test_it_is_that_of_the_environment_and_its_smallest_node_counts() -> None:
    assert Held.here({}) is None
    found = Held.here({**TWO_NODES, **INSIDE, "SLURM_JOB_CPUS_PER_NODE": "8,4(x2)", "SLURM_JOB_END_TIME": "5"})
    assert (found.nodes, found.cpus, found.ends_at, found.inside) == (2, 4, 5.0, True)
    assert found.elsewhere == ""


@pytest.mark.parametrize("queue", ["echo 7 7 COMPLETED", "echo Invalid job id specified >&2; exit 1"])
def test_one_that_is_over_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: str) -> None:
    """As in tmux, which was begun inside of it."""
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{queue}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Held.here({**TWO_NODES, **INSIDE, "SLURM_JOB_END_TIME": "5"}) is None


def test_no_more_is_planned_with_than_it_has() -> None:
    cpus, gpus = held().bounded(64, 8)
    assert (cpus, gpus()) == (4, 1)
    cpus, gpus = held(gpus=None).bounded(2, 8)  # on nodes of its own, what this process sees
    assert (cpus, gpus()) == (2, 8)
    cpus, gpus = held(inside=False).bounded(64, 0)  # not what the login node has
    assert (cpus, gpus()) == (4, 1)


def test_an_allocation_of_four_tasks_serves_a_step_of_two_and_three_nodes_do_not_fit() -> None:
    """As `salloc -N 2 -n 4` gives it, with GPUs that were asked for by their sum."""
    shown = {"JobId": "7", "NumNodes": "2", "NumTasks": "4", "CPUs/Task": "1", "AllocTRES": "cpu=8,gres/gpu=2"}
    step = Job(nodes=2, cpus_per_task=4, gpus_per_node=1, memory_mb=None, minutes=10, held=True)
    allocation.check(step, shown)
    assert "nodes: 2, the run declares 3" in refusal(allocation.check, replace(step, nodes=3), shown)


def test_before_its_end_the_driver_is_told_to_end_and_none_begins_that_has_no_time() -> None:
    assert held().seconds_of_work == math.inf
    assert held(seconds=3600).seconds_of_work == pytest.approx(3600 - LAST_SECONDS, abs=1)
    assert held(seconds=100).seconds_of_work == pytest.approx(90, abs=1)
    assert "too short to begin" in refusal(end_before, held(seconds=-1.0))
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    end_before(held(seconds=0.5))
    until(lambda: received, "the driver is told")
    assert received == [signal.SIGTERM]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_of_an_allocation_train_and_a_third_is_not_asked_for(cluster: MiniSlurm, tmp_path: Path) -> None:
    """As a gate does, whose processes are started as those of a run."""
    (tmp_path / "mine.yaml").write_text(TWO)
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", f"{ROOT}/Snakefile", "--directory", str(tmp_path)]
    snakemake += ["--profile", f"{ROOT}/profiles/local", "equivalence", "--configfile", f"{tmp_path}/mine.yaml"]
    allocation = ["salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=10"]
    elsewhere = cluster.run(*allocation, *snakemake, check=False)
    assert elsewhere.returncode
    assert "this shell is not on its nodes; first give: srun --overlap" in elsewhere.stderr
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1"]
    called = cluster.run(*allocation, *step, *snakemake, check=False, timeout=500)
    assert called.returncode == 0, called.stdout + called.stderr
    assert "2 nodes, 1 CPU" in called.stderr
    (verdict,) = tmp_path.glob("results/equivalence/gates/*/verdict.json")
    assert json.loads(verdict.read_text())["equivalent"]


# This machine


MNIST = {"task": "princeton-mnist", "repeats": 1, "comparisons": [{"strategy": "cpu"}]}


def planned(config: dict[str, object], site: Site | None = None) -> Plan:
    return plan(load(config), gpus=0, site=site)


def test_data_that_is_not_where_it_should_be_is_known_before_any_job(tmp_path: Path) -> None:
    root, refused = tmp_path / "data", partial(refusal, unready.check)
    made = planned(MNIST | {"dataset_root": str(root)})
    assert refused(made, tmp_path).startswith(f"config: dataset_root: '{root}' does not exist; expected a folder")
    root.mkdir()
    assert refused(made, tmp_path).startswith(f"config: dataset_root: '{root}' holds no mnist: expected MNIST/raw/")
    root.rmdir()
    root.touch()
    assert refused(made, tmp_path).startswith(f"config: dataset_root: '{root}' is a file; expected a folder")
    made = planned(MNIST | {"task": "autoencoder-mnist", "dataset_mirror": f"file://{tmp_path}/none"})
    assert "there is no folder" in refused(made, tmp_path)
    for key, given in {"dataset_root": str(tmp_path), "dataset_mirror": "https://x.org"}.items():
        told = f"{key}: '{given}' is not read: task 'lenet-digits' makes its data"
        assert told in planned(MNIST | {"task": "lenet-digits", key: given}).warnings


@pytest.mark.parametrize(("shown", "count"), [(None, 8), ("2,5", 2), ("", 0)])
def test_gpus_are_those_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int) -> None:
    """What a list means is the driver's to say; that it is asked, and with the list, is what is tested here."""
    driver_of_gpus(tmp_path, monkeypatch, 8)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert gpus.count_gpus() == count
    if count == 2:
        made = plan(load({"comparisons": [{"strategy": "ddp", "devices_per_node": [2, 8]}]}))
        assert [each.setting.shape.devices for each in made.settings] == [2]
        assert made.skipped[0].reasons == ("devices_per_node is 8, 2 GPUs can be used here",)


@pytest.mark.parametrize("unfit", ["`", "%", "{", '"'])
def test_a_name_that_slurm_or_a_jobs_shell_would_read_otherwise_is_told(tmp_path: Path, monkeypatch, unfit) -> None:
    folder = tmp_path / f"a'{unfit}b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (line,) = (each for each in unready.unready(planned({}, load_site("generic", ROOT))) if "rename it" in each)
    assert line.endswith(f": Slurm jobs cannot work with {unfit} in a path; rename it")
    assert unready.unready(planned({})) == []  # on this machine it works
    assert list(unready.unfit_paths("/data/50%/config.yaml", "/opt/50%/.venv")) == []  # no log of Slurm's is there
    (line,) = unready.unfit_paths("c$(touch C).yaml", "sound.yaml")
    assert line == "c$(touch C).yaml: Slurm jobs cannot work with $ in a path; rename it"


@pytest.mark.parametrize(("key", "path"), [("image", "/data/x$(id).sif"), ("python", "a;b"), ("image", "--bind=/")])
def test_a_path_that_a_shell_would_read_otherwise_is_refused(tmp_path: Path, key: str, path: str) -> None:
    text = (ROOT / "config/sites/generic.yaml").read_text().split("\nenvironment:")[0]
    (tmp_path / "x.yaml").write_text(f"{text}\nenvironment: {{{key}: {path!r}}}\n")
    with pytest.raises(UserError, match=rf"x\.yaml: environment\.{key}: .* is not allowed; allowed: a name or a path"):
        load_site(str(tmp_path / "x.yaml"), ROOT)
