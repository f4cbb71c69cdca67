"""Keys of a cluster's file that contradict each other, or have no effect: a line each, before anything is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plans import CPU, ROOT
from relay.base.errors import UserError
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.spec.site import Site, load_site

CORES = {"name": "cores", "device": "cpu", "cpus_per_node": 8, "max_minutes": 60}
GPUS = {"name": "gpus", "device": "cuda", "gpu_name": "a100", "gpus_per_node": 2, "cpus_per_node": 8, "max_minutes": 60}
BASE = {"name": "mine", "description": "a test", "verified": "here", "partitions": [CORES, GPUS]}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"min_minutes": 61},
        "partitions[0].max_minutes: 60 is not allowed with min_minutes: 61, the shortest job; allowed: at least as "
        "much",
    ),
    (
        {"partitions": [GPUS | {"gpu_generation": "hopper"}]},
        "partitions[0].gpu_generation: 'hopper' is not allowed with gpu_name: a100, which is of the generation ampere; "
        "leave it out",
    ),
]


def site(folder: Path, keys: dict[str, Any]) -> Site:
    (folder / "mine.yaml").write_text(yaml.safe_dump(BASE | keys))
    return load_site(str(folder / "mine.yaml"), ROOT)


def planned(folder: Path, keys: dict[str, Any], *asked: dict[str, Any]) -> Plan:
    config = load({"repeats": 1, "comparisons": list(asked) or [CPU]})
    return plan(config, site=site(folder, keys), speeds=Path("none"))


@pytest.mark.parametrize(("keys", "told"), REFUSED, ids=lambda each: "-".join(each) if isinstance(each, dict) else "")
def test_a_contradiction_is_one_line(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        site(tmp_path, keys)
    assert str(caught.value).splitlines()[0] == f"{tmp_path}/mine.yaml: {told}"


def test_a_cpu_build_of_torch_is_not_sent_to_gpus(tmp_path: Path) -> None:
    made = planned(tmp_path, {"environment": {"torch": "cpu"}}, {"strategy": "ddp", "devices_per_node": 2}, CPU)
    (skipped,) = made.skipped
    assert skipped.reasons == (
        f"{tmp_path}/mine.yaml: environment.torch: cpu has no code for GPUs; allowed: auto, cuda, cu130, cu126, cu128, "
        "cu124, cu118",
    )
    assert [run.strategy.name for run in made.runs] == ["cpu"]
    assert not planned(tmp_path, {}, {"strategy": "ddp", "devices_per_node": 2}).skipped
