"""Preflights as the planner makes them, and the facts of nodes that are joined to them."""

import copy
import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from plans import ROOT, plan
from relay.config.config import load
from relay.preflight.facts import gathered
from relay.spec.run import Preflight
from slurm_runs import site_in

FACTS = ROOT / "tests" / "preflight_facts"
CPU_NODES = {"name": "cpus", "device": "cpu", "cpus_per_node": 64, "max_nodes": 4, "max_minutes": 60}
GPU_NODES = {"name": "gpus", "device": "cuda", "gpu_name": "h100", "gpus_per_node": 4, "cpus_per_node": 64}
GPU_NODES |= {"memory_mb_per_node": 512_000, "max_nodes": 4, "max_minutes": 60}
# The site whose nodes `h100_2x2.json` describes.
SITE: dict[str, Any] = {"partitions": [CPU_NODES, GPU_NODES]}
SITE |= {"confines_cpus": True, "node_disk": "$SLURM_TMPDIR", "environment": {"mode": "wheels", "torch": "cuda"}}
# Two nodes with two processes each, of four CPUs.
COMPARISON = {"strategy": "ddp", "nodes": 2, "devices_per_node": 2, "launcher": "srun", "cpus_per_task": 4}
CONFIG = {"repeats": 1, "memory_mb_per_node": 64_000, "strategy_folders": [str(FACTS / "strategies")]}


@cache
def _specification(changes: str) -> str:
    """The one preflight of a plan, as JSON of `preflight.json`; `changes` is JSON of comparison, site and config."""
    given = json.loads(changes)
    config = load(CONFIG | {"comparisons": [COMPARISON | given.get("comparison", {})]} | given.get("config", {}))
    with tempfile.TemporaryDirectory() as folder:
        site = site_in(Path(folder), **SITE | given.get("site", {}))
    made = plan(config, site=site)
    assert not made.skipped, made.skipped
    (run,) = made.preflights.values()
    return json.dumps(run.to_dict(made.job(run)))


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
