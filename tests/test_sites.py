"""The sites: mistakes get one line, jobs the right partition, Snakemake the profiles, and clusters take the jobs."""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import mini_slurm
import site_plans
from mini_slurm import MiniSlurm
from plans import CPU, DDP, ROOT, plan, planned
from relay.base.errors import UserError
from relay.config.config import load
from relay.planning.table import render
from relay.slurm import allocation, shapes
from relay.spec.site import Site, load_site, names
from relay.spec.site_blocks import Partition
from relay.workflow import new_call
from site_clusters import filled_in, site_nodes

READY = names(ROOT)
RETIRED = ("beluga", "cedar", "graham")
CHARGED = (*RETIRED, "fir", "narval", "nibi", "rorqual")

SMALL = """
name: mine
description: a cluster
verified: in a test
partitions:
  - {name: cores, device: cpu, cpus_per_node: 8, memory_mb_per_node: 16000, max_nodes: 2, max_minutes: 600}
  - {name: quick, device: cuda, gpu_name: a100, gpus_per_node: 2, cpus_per_node: 8, max_minutes: 60}
  - {name: slow, device: cuda, gpu_name: a100, gpus_per_node: 4, cpus_per_node: 16, max_minutes: 600}
environment: {mode: current}
"""


def site(tmp_path: Path, text: str = "", base: str = SMALL) -> Site:
    """A file of a user's own: `base` with the keys of `text` in place of its own."""
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(base), **(yaml.safe_load(text) or {})}))
    return load_site(str(file), ROOT)


def test_a_driver_that_is_a_job_takes_its_part_of_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a batch script of the user's own, where /proc hides that Slurm has started it."""
    site(tmp_path, "limits: {jobs: 3}")
    config: Any = SimpleNamespace(site=str(tmp_path / "mine.yaml"))
    monkeypatch.setenv("SLURM_JOB_ID", "4")
    monkeypatch.setattr(os, "getppid", lambda: 2**30)
    assert new_call._site(config, None, ROOT).limits.jobs == 2


# Ready sites


@pytest.mark.parametrize("name", READY)
def test_a_full_node_of_gpus_gets_no_more_than_the_node_has(name: str) -> None:
    ready = load_site(name, ROOT)
    for p in (p for p in ready.partitions if p.device == "cuda"):
        cpus = p.gpus_per_node * (ready.cpus_per_gpu or 1)
        assert cpus <= p.cpus_per_node
        assert ready.memory_mb(p.gpus_per_node, cpus, p) <= (p.memory_mb_per_node or 10**9)
        gpus = min(p.gpus_per_node, p.limits.gpus or p.gpus_per_node)
        assert ready.partition_for("cuda", gpus, 1, 1, cpus_per_node=gpus * (ready.cpus_per_gpu or 1))[0]


@pytest.mark.parametrize("name", READY)
def test_only_what_a_user_must_know_is_missing(name: str) -> None:
    lines = load_site(name, ROOT).missing(60)
    expected = {"account"} if name in CHARGED else set()
    assert {re.match(r"config/sites/[\w-]+\.yaml: (\w+)", line)[1] for line in lines} == expected
    assert filled_in(load_site(name, ROOT)).missing(60) == []


# Mistakes

MISTAKES = yaml.safe_load(Path(__file__).with_name("site_mistakes.yaml").read_text())


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["given"])
def test_a_mistake_is_one_line_with_its_file(tmp_path: Path, mistake: dict[str, str]) -> None:
    assert site(tmp_path, "mail_type: [begin, End]").mail_type == ["BEGIN", "END"]  # as pages write them: no mistake
    with pytest.raises(UserError) as caught:
        site(tmp_path, mistake["given"])
    (line,) = str(caught.value).splitlines()
    expected = mistake["told"].replace('"', "'")
    assert line.replace('"', "'").replace("''", "'").startswith(f"{tmp_path}/mine.yaml: {expected}"), line


def test_all_texts_that_a_command_could_not_hold_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        site(tmp_path, "account: 'a;b'\nstack_modules: {torch: [good, 'a b']}\nlibtorch: {link_flags: [';x']}")
    told = [line.partition("mine.yaml: ")[2].partition(": ")[0] for line in str(caught.value).splitlines()]
    assert told == ["account", "stack_modules.torch[1]", "libtorch.link_flags[0]"]


# Which partition


def test_the_first_partition_that_fits_is_taken(tmp_path: Path) -> None:
    mine = site(tmp_path)

    def chosen(*shape: Any, **more: int) -> str | None:
        partition, reason = mine.partition_for(*shape, **more)
        assert bool(reason) == (partition is None)
        return partition and partition.name

    assert chosen("cpu", 0, 2, 600, cpus_per_node=8, memory_mb=16_000) == "cores"
    assert chosen("cuda", 2, 1, 60) == "quick"
    assert chosen("cuda", 2, 1, 61) == "slow"  # the first has no time for it
    assert chosen("cuda", 3, 8, 60) == "slow"  # and too few GPUs for this one
    assert chosen("cuda", 2, 1, 60, cpus_per_node=9) == "slow"
    assert chosen("cuda", 1, 1, 9_999) == "quick"  # none has the time: see `missing`


def test_a_gpu_has_its_even_share_of_its_node_by_default(tmp_path: Path) -> None:
    gpus = "partitions: [{device: cuda, name: gpus, gpus_per_node: 4, cpus_per_node: 64, memory_mb_per_node: 512000}]"
    mine = site(tmp_path, gpus)
    assert (mine.cores_per_gpu, mine.memory_mb(4, 4, mine.partitions[0])) == (16, 512_000)
    assert (mine.memory_mb(1, 1, mine.partitions[0]), mine.memory_mb(0, 3, mine.partitions[0])) == (128_000, 6_000)
    by_cpus = site(tmp_path, f"{gpus}\nmemory_mb_per_cpu: 3000")
    assert by_cpus.memory_mb(1, 1, by_cpus.partitions[0]) == 48_000
    found = planned(DDP | {"devices_per_node": 4}, site=mine)
    job = found.job(found.runs[0])
    assert (job.tasks * job.cpus_per_task, job.memory_mb) == (64, 512_000)
    assert "partition gpus, 512,000 MB a node" in " ".join(render(found).split())


def test_a_cpu_build_of_torch_is_not_sent_to_gpus(tmp_path: Path) -> None:
    made = planned(DDP, CPU, site=site(tmp_path, "environment: {torch: cpu}"))
    (skipped,) = made.skipped
    assert "mine.yaml: environment.torch: cpu has no code for GPUs; allowed: auto, cuda, " in skipped.reasons[0]
    assert {run.strategy.name for run in made.runs} == {"cpu"}


# Every strategy is planned on every ready site, and the page about that is in step


@pytest.mark.slow
def test_the_page_is_in_step_with_sites_and_planner() -> None:
    text = (site_plans.ROOT / site_plans.PAGE).read_text()
    for name in ("arc", "trillium-gpu"):  # all of them take half a minute
        assert site_plans.row(name) in text, "run `python scripts/site_plans.py`"
    counts = {name: int(count) for name, count in re.findall(r"(?m)^\| `([a-z0-9-]+)` \| (\d+) \|", text)}
    assert sorted(counts) == names(site_plans.ROOT)
    assert min(counts.values()) > 10


# The sites' profiles: Snakemake understands them, they plan, and clusters like the sites take their jobs.


# Several kinds of GPU, whole nodes alone, no requests for memory; what is above reads the others.
SHOWN = ("trillium-gpu", "arc")
PROFILES = sorted(p.parent.name for p in ROOT.glob("profiles/*/config.yaml"))


def options(profile: Path) -> Any:
    """What Snakemake understands of a profile; SystemExit where it does not."""
    from snakemake.cli import get_argument_parser  # which takes a second

    return get_argument_parser([str(profile)]).parse_args([])


@pytest.mark.parametrize("name", PROFILES)
def test_snakemake_understands_the_profile(name: str) -> None:
    given = options(ROOT / "profiles" / name)
    assert given.retries == 2
    if name == "local":
        return
    assert (given.executor, given.torch_relay_no_requeue) == ("torch-relay", True)
    assert (given.torch_relay_jobname_prefix, given.nolock, given.rerun_incomplete) == ("relay", True, True)
    site_name = "generic" if name == "slurm" else name
    assert given.default_resources["site"].raw == f"'{site_name}'"
    methods = {m.name for m in given.software_deployment_method}
    assert methods == {"ENV_MODULES"}


# Planned and submitted


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_cluster_like_the_site_takes_its_jobs(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """A planned job for each kind of node, as large as a node: Slurm grants what the site's file says it has."""
    mini_slurm.require()
    ready = filled_in(load_site(name, ROOT))
    nodes, partitions = site_nodes(ready)
    with MiniSlurm(tmp_path_factory.mktemp("site"), nodes, partitions) as cluster:
        for wanted in ready.partitions:
            config = {"device": wanted.device, "repeats": 1, "runtime_minutes": wanted.max_minutes or 1}
            found = plan(load(config | {"comparisons": [filling(wanted)]}), site=ready)
            (run,) = found.runs
            asked = found.job(run)
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
