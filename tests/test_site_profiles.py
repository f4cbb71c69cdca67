"""The sites' profiles: Snakemake understands them, they plan, and clusters like the sites take their jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import site_files
import slurm_packages
from mini_slurm import MiniSlurm
from plans import plan
from relay.config.config import load
from relay.slurm import allocation, shapes
from relay.spec.site import load_site
from relay.spec.site_blocks import Partition
from site_clusters import filled_in, site_nodes

ROOT = Path(__file__).resolve().parents[1]
# Several kinds of GPU, whole nodes alone, no requests for memory; test_sites.py reads the others.
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


@pytest.mark.slow
def test_profiles_and_schema_are_in_step_with_the_sites() -> None:
    for name, text in site_files.generated(ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: run 'make schema'"


# Planned and submitted


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
