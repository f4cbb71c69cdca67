"""Preflights as the planner makes them, and the facts of nodes that are joined to them."""

import copy
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from plans import ROOT, plan
from relay.config.config import load
from relay.planning.plan import Plan
from relay.preflight.facts import gathered
from relay.spec.run import Preflight
from relay.spec.site import load_site

FACTS = ROOT / "tests" / "preflight_facts"
CPU_NODES = {"name": "cpus", "device": "cpu", "cpus_per_node": 64, "max_nodes": 4, "max_minutes": 60}
GPU_NODES = {"name": "gpus", "device": "cuda", "gpu_name": "h100", "gpus_per_node": 4, "cpus_per_node": 64}
GPU_NODES |= {"memory_mb_per_node": 512_000, "max_nodes": 4, "max_minutes": 60}
# The site whose nodes `h100_2x2.json` describes.
SITE = {"name": "somewhere", "description": "a cluster", "verified": "never", "partitions": [CPU_NODES, GPU_NODES]}
SITE |= {"confines_cpus": True, "node_disk": "$SLURM_TMPDIR", "environment": {"mode": "wheels", "torch": "cuda"}}
# Two nodes with two processes each, of four CPUs.
COMPARISON = {"strategy": "ddp", "nodes": 2, "devices_per_node": 2, "launcher": "srun", "cpus_per_task": 4}
CONFIG = {"repeats": 1, "memory_mb_per_node": 64_000, "strategy_folders": [str(FACTS / "strategies")]}


@cache
def _checkout() -> tempfile.TemporaryDirectory[str]:
    """The project's scripts and locks, with locks for stack deepspeed where there are none; removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="planned-preflights-")
    root = Path(folder.name)
    (root / "scripts").symlink_to(ROOT / "scripts")
    shutil.copytree(ROOT / "envs", root / "envs")
    for build in ("", "-cuda"):
        if not (lock := root / "envs" / f"deepspeed{build}.txt").exists():
            shutil.copy(root / "envs" / f"torch{build}.txt", lock)
    return folder


def planned(
    *comparisons: Mapping[str, Any], site: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
) -> Plan:
    """The plan of COMPARISON with what each of `comparisons` changes, on SITE with what `site` changes."""
    root = Path(_checkout().name)
    file = root / "somewhere.yaml"
    file.write_text(yaml.safe_dump(SITE | dict(site or {})))
    given = CONFIG | {"comparisons": [COMPARISON | c for c in comparisons]} | dict(config or {})
    made = plan(load(given), root=root, site=load_site(str(file), root))
    assert not made.skipped, made.skipped
    return made


@cache
def _specification(changes: str) -> str:
    """The one preflight of a plan, as JSON of `preflight.json`; `changes` is JSON of comparison, site and config."""
    given = json.loads(changes)
    with tempfile.TemporaryDirectory() as name:
        made = planned(given.get("comparison", {}), site=given.get("site"), config=given.get("config"))
        (run,) = made.preflights.values()
        path = Path(name) / "preflight.json"
        run.write(path, made.job(run))
        return path.read_text(encoding="utf-8")


def recorded(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The facts of a job in which all is right, on two nodes with two GPUs each.

    The preflight is planned, with these changes of `comparison`, `site` and `config`; what its processes reported is
    `h100_2x2.json`.
    """
    specification = json.loads(_specification(json.dumps(changes or {}, sort_keys=True)))
    reported = json.loads((FACTS / "h100_2x2.json").read_text(encoding="utf-8"))
    common = reported.pop("rank")
    ranks = [copy.deepcopy(common) | rank for rank in reported.pop("ranks")]
    return gathered(Preflight.from_dict(specification), specification["job"], ranks, **reported)
