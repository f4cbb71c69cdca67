"""The workflow as its user runs it on a Slurm cluster."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from mini_slurm import MiniSlurm
from plans import ROOT, plan
from relay.config.config import load
from relay.planning.plan import Plan
from relay.spec.site import Site, load_site

PARTITIONS = [
    {"name": "cpu", "device": "cpu", "cpus_per_node": 8, "max_nodes": 2, "max_minutes": 120},
    {"name": "gpu", "device": "cuda", "gpu_name": "fake", "gpus_per_node": 4, "cpus_per_node": 8, "max_minutes": 120},
]
SITE = {"name": "mini", "description": "a virtual cluster", "verified": "here", "partitions": PARTITIONS}
SITE |= {"memory_mb_per_cpu": 900, "node_disk": "/mnt/nodetmp", "environment": {"mode": "current"}}

# The cluster's GPUs are no real ones: the build for CPUs is a tenth as large.
WHEELS = {"mode": "wheels", "torch": "cpu"}


def site_file(folder: Path, **changes: Any) -> Path:
    """A site's file in the folder: the virtual cluster's, with these changes."""
    path = folder / "mini.yaml"
    path.write_text(yaml.safe_dump(SITE | changes))
    return path


def site_in(folder: Path, **changes: Any) -> Site:
    """That site."""
    return load_site(str(site_file(folder, **changes)), ROOT)


def planned_there(config: dict[str, Any], site: Path) -> Plan:
    """The plan of a config on the site of a file."""
    return plan(load(config), site=load_site(str(site), ROOT))


def slurm_command(folder: Path, *arguments: str, site: str | Path | None = None, profile: str = "slurm") -> list[str]:
    """Snakemake on the config `mine.yaml` of `folder`, watching its jobs every second.

    `arguments` are targets and options; a `site` (a name or a file) takes the place of the profile's.
    """
    command = [sys.executable, f"{ROOT}/tests/support/fast_snakemake.py", "--snakefile", f"{ROOT}/Snakefile"]
    command += ["--profile", f"{ROOT}/profiles/{profile}", "--directory", str(folder)]
    command += ["--torch-relay-init-seconds-before-status-checks", "1"]
    if site is not None:
        command += ["--default-resources", f"site={str(site)!r}"]
    # Targets stand after an option of one value and before --configfile, which takes all that follow it.
    return [*command, "--latency-wait", "20", *arguments, "--configfile", f"{folder}/mine.yaml"]


def slurm_snakemake(
    cluster: MiniSlurm,
    folder: Path,
    config: dict[str, Any],
    *arguments: str,
    site: str | Path | None = None,
    profile: str = "slurm",
    timeout_seconds: float = 900,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str]:
    """Run the workflow in `folder` on the cluster; its exit status and all that it printed.

    `variables` are further ones of the user's shell.

    Raises `subprocess.TimeoutExpired` with the output so far; the jobs are then left to `MiniSlurm.tidy`.
    """
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    done = cluster.run(
        *slurm_command(folder, *arguments, site=site, profile=profile),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_seconds,
        env={"COLUMNS": "80", "SNAKEMAKE_PROFILE": "", **variables},
    )
    return done.returncode, done.stdout
