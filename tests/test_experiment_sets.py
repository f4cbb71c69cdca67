"""The ready experiment sets: each is planned whole for a site with GPUs, and shrunk for a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plans import ROOT, plan
from relay.config import shrink
from relay.config.config import Config, load
from relay.planning.plan import Plan
from relay.spec.site import load_site
from slurm_runs import site_file

pytest_plugins = ["plans"]
SETS = {path.stem: path for path in sorted((ROOT / "config" / "sets").glob("*.yaml"))}
# Why a setting of a shrunk set may be left out: what a laptop cannot have.
NOT_HERE = ("launcher srun needs a cluster profile", "is a mode of GPUs, device is cpu", "this machine has no libaio.h")
EXPECTED = ("this machine has 2 CPUs", "runs once")
STEPS = 1100  # of a shrunk run
# Their shrunk tasks have no shipped card.
LOOKED_AT = ("batch-and-workers", "mps-replicas", "resnet18", "tf32")

pytestmark = pytest.mark.usefixtures("in_the_project")


def config_of(name: str, **more: Any) -> Config:
    return shrink.applied(load(yaml.safe_load(SETS[name].read_text()) | more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    """Every set on a cluster with GPUs."""
    partitions = [
        {"name": "gpus", "device": "cuda", "gpus_per_node": 4, "cpus_per_node": 48, "max_nodes": 4, "max_minutes": 600},
        {"name": "cpus", "device": "cpu", "cpus_per_node": 48, "max_nodes": 4, "max_minutes": 600},
    ]
    site = load_site(str(site_file(tmp_path_factory.mktemp("site"), partitions=partitions)), ROOT)
    return {name: plan(config_of(name), site=site, root=ROOT, results=Path("none")) for name in SETS}


@pytest.mark.parametrize("name", SETS)
def test_nothing_of_it_is_skipped_on_a_cluster_with_gpus(name: str, whole: dict[str, Plan]) -> None:
    plan = whole[name]
    assert [(skipped.setting.strategy.name, skipped.reasons) for skipped in plan.skipped] == []
    # The documents' own shapes: two GPUs of each node.
    assert [warning for warning in plan.warnings if "fill a node first" not in warning] == []
    assert {run.repeat for run in plan.runs} == {0, 1, 2}


@pytest.mark.parametrize("name", [name for name in SETS if name not in LOOKED_AT])
def test_shrunk_it_runs_on_two_cores_without_a_gpu_and_a_download(name: str, tmp_path: Path) -> None:
    config = config_of(name, shrink=True)
    made = plan(config, gpus=0, cpus=2, root=ROOT, results=tmp_path)
    left_out = [reason for skipped in made.skipped for reason in skipped.reasons]
    assert [reason for reason in left_out if not any(known in reason for known in NOT_HERE)] == []
    assert shrink.WARNING in made.warnings
    others = [warning for warning in made.warnings if warning != shrink.WARNING]
    assert [warning for warning in others if not any(known in warning for known in EXPECTED)] == []
    assert len(made.settings) >= 2
    for run in made.runs:
        assert (run.shape.device, run.shape.nodes) == ("cpu", 1)
        assert run.dataset.name in ("synthetic", "digits", "relay-text")
        assert run.shape.world_size <= 4
        assert run.length.warmup_steps < run.length.total_steps <= STEPS
