"""The sites' profiles: Snakemake understands them, they plan, and clusters like the sites take their jobs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from snakemake.cli import get_argument_parser

import site_files
import slurm_packages
from mini_slurm import MiniSlurm
from relay.planning import shapes
from relay.planning.config import load
from relay.planning.planner import plan
from relay.slurm import allocation
from relay.spec.partition import Partition
from relay.spec.site import load_site
from site_clusters import filled_in, site_nodes, written
from snakemake_calls import called

ROOT = Path(__file__).resolve().parents[1]
# Several kinds of GPU, whole nodes alone, no requests for memory; test_sites.py reads the others.
SHOWN = ("narval", "trillium-gpu")
PROFILES = sorted(p.parent.name for p in ROOT.glob("profiles/*/config.yaml"))


def options(profile: Path) -> Any:
    """What Snakemake understands of a profile; SystemExit where it does not."""
    return get_argument_parser([str(profile)]).parse_args([])


@pytest.mark.parametrize("name", PROFILES)
def test_snakemake_understands_the_profile(name: str) -> None:
    given = options(ROOT / "profiles" / name)
    assert given.retries == 2
    if name == "local":
        return
    assert (given.executor, given.slurm_status_command, given.slurm_no_requeue) == ("slurm", "squeue", True)
    assert (given.slurm_jobname_prefix, given.nolock, given.rerun_incomplete) == ("relay", True, True)
    site_name = "generic" if name == "slurm" else name
    assert given.default_resources["site"].raw == f"'{site_name}'"
    methods = {m.name for m in given.software_deployment_method}
    assert methods == {"ENV_MODULES"}


def test_profiles_and_schema_are_in_step_with_the_sites(tmp_path: Path) -> None:
    for name, text in site_files.generated(ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: run 'make schema'"
    for folder in ("config/sites", "profiles/slurm"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    written(load_site("arc", ROOT).model_copy(update={"name": "ours"}), tmp_path / "config/sites/ours.yaml")
    (tmp_path / "profiles/slurm/config.yaml").write_text(
        (ROOT / "profiles/slurm/config.yaml").read_text().replace("jobs: 100", "jobs: 7")
    )
    made = site_files.generated(tmp_path)
    assert "site='ours'" in made["profiles/ours/config.yaml"]
    assert "| `ours` |" in made["config/sites/README.md"]
    assert "jobs: 7" in made["profiles/narval/config.yaml"]
    assert "jobs: 7" in made["profiles/zurada/config.yaml"]  # fewer than a user's 50


# Planned and submitted


@pytest.mark.slow
def test_a_ready_profile_plans(tmp_path: Path) -> None:
    name = "trillium-gpu"
    words = ["--snakefile", ROOT / "Snakefile", "--directory", tmp_path, "--profile", ROOT / "profiles" / name]
    status, printed = called([*words, "--dry-run", "--config", "repeats=1"], ROOT)
    assert status == 0, printed
    missing = load_site(name, ROOT).missing(60)
    assert not missing or "warning: " in printed, printed
    assert "segment" in printed
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_cluster_like_the_site_takes_its_jobs(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """A planned job for each kind of node, as large as a node: Slurm grants what the site's file says it has."""
    slurm_packages.require()
    ready = filled_in(load_site(name, ROOT))
    nodes, partitions = site_nodes(ready)
    with MiniSlurm(tmp_path_factory.mktemp("site"), nodes, partitions, namespaces=False) as cluster:
        for wanted in ready.partitions:
            config = {"device": wanted.device, "repeats": 1, "runtime_minutes": wanted.max_minutes or 1}
            found = plan(load(config | {"comparisons": [filling(wanted)]}), site=ready)
            (run,) = found.runs
            asked = found.job(run)
            assert asked
            flags = [*shapes.sbatch_flags(asked, ready), "--output=/dev/null", "--parsable"]
            job = cluster.ended(cluster.run("sbatch", *flags, "--wrap=true").stdout.strip())
            assert job["JobState"] == "COMPLETED", job
            assert (job["Partition"], job["NumNodes"]) == (wanted.name or "main", "1")
            allocation.check(asked, job)
            if wanted.whole_nodes:
                assert int(job["NumCPUs"]) == wanted.cpus_per_node
            if not wanted.asks_memory:
                assert "--mem" not in " ".join(flags)


def filling(wanted: Partition) -> dict[str, Any]:
    """A comparison that takes a whole node, or what a user may have of one."""
    if wanted.device == "cpu":
        return {"strategy": "cpu", "cpus_per_task": wanted.cpus_per_node}
    if wanted.gpus_per_node == 1:
        return {"strategy": "single_gpu"}
    most = wanted.limits.gpus or wanted.gpus_per_node
    return {"strategy": "ddp", "devices_per_node": min(wanted.gpus_per_node, most)}


RECORDER = """#!/bin/sh
printf '%s\\n' "$@" > {record}; exec {program} "$@"
"""

TOY = """
import os, sys
from pathlib import Path
sys.path.insert(0, "{root}/scripts")
from relay.spec.site import leave_to_slurm, load_site, site_of
site = load_site(site_of(workflow.resource_settings._parsed_default_resources), Path("{root}"))
leave_to_slurm(site, os.environ)
with open("seen.txt", "a") as seen:
    print(site.name, "job" if workflow.remote_exec else "driver", file=seen)
rule done:
    output: "done.txt"
    resources: mpi="", nodes=1, tasks=1, mem_mb=100, runtime=1
    shell: "touch {{output}}"
"""


@pytest.mark.slow
def test_the_executor_names_no_partition_that_the_site_leaves_to_slurm(cluster: MiniSlurm, tmp_path: Path) -> None:
    """And jobs find the site that the driver has, though `--config` was given."""
    record, sbatch = tmp_path / "arguments.txt", tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(RECORDER.format(record=record, program=shutil.which("sbatch", path=cluster.environment["PATH"])))
    sbatch.chmod(0o755)
    (tmp_path / "Snakefile").write_text(TOY.format(root=ROOT))
    command = [sys.executable, ROOT / "tests/support/fast_snakemake.py", "--profile", ROOT / "profiles/slurm"]
    command += ["--slurm-init-seconds-before-status-checks", "1", "--config", "seed=2"]
    path = f"{sbatch.parent}:{cluster.environment['PATH']}"
    cluster.run(*command, cwd=tmp_path, env={"PATH": path})
    assert (tmp_path / "done.txt").exists()
    assert set((tmp_path / "seen.txt").read_text().splitlines()) == {"generic driver", "generic job"}
    arguments = record.read_text().splitlines()
    assert not [a for a in arguments if a == "-p" or a.startswith("--partition")], arguments
    (job,) = [j for j in cluster.jobs() if j["WorkDir"] == str(tmp_path)]
    assert (job["JobState"], job["Requeue"]) == ("COMPLETED", "0")
    assert job["JobName"].startswith("relay_")
