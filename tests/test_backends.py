"""The library by which processes communicate: an axis; refused where the device, the strategy or torch has it not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import yaml

from plans import DDP, planned, reasons
from relay.base.errors import UserError
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.process.ranks import Ranks, backends
from relay.spec.site import load_site

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")
MPS = {"strategy": "mps", "processes_per_device": 2}
GPU_NODES = {"name": "gpus", "device": "cuda", "gpu_name": "a100", "gpus_per_node": 4, "cpus_per_node": 48}
SITE = {
    "name": "somewhere",
    "description": "a cluster",
    "verified": "never",
    "partitions": [GPU_NODES | {"memory_mb_per_node": 500_000, "max_nodes": 8, "max_minutes": 600}],
    "modules": ["python/3.11", "torch/2.9"],
    "environment": {"mode": "modules", "torch_mpi": True},
}


def on_site(tmp_path: Path, *comparisons: dict[str, Any], **environment: Any) -> Plan:
    """A plan of comparisons on a cluster whose torch has MPI, unless `environment` says otherwise."""
    file = tmp_path / "somewhere.yaml"
    file.write_text(yaml.safe_dump(SITE | {"environment": SITE["environment"] | environment}))
    return plan(load({"repeats": 1, "comparisons": list(comparisons)}), site=load_site(str(file), tmp_path))


def test_two_backends_are_two_settings_with_a_gate_each_and_one_reference() -> None:
    found = planned(DDP | {"backend": [None, "gloo"]}, gpus=2)
    assert [run.setting.shape.backend for run in found.settings] == ["nccl", "gloo"]
    assert (len(found.gates), len(found.references)) == (2, 1)


NO_MPI = "which PyTorch's own packages are not, and this is no cluster (environment.torch_mpi); use gloo"
REFUSED = {
    "backend nccl needs a GPU for each process, device is cpu; use gloo": (DDP | {"backend": "nccl"}, 0),
    "fsdp works with nccl or gloo, backend is mpi": (DDP | {"strategy": "fsdp", "backend": "mpi"}, 2),
    f"backend mpi needs a torch that was built with MPI, {NO_MPI}": (DDP | {"backend": "mpi"}, 0),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_had_is_skipped_with_the_reason(reason: str) -> None:
    comparison, gpus = REFUSED[reason]
    assert reasons(comparison, gpus=gpus) == [reason]


def test_mpi_is_for_a_site_whose_torch_has_it(tmp_path: Path) -> None:
    """Document 000's replicas on one GPU."""
    found = on_site(tmp_path, MPS | {"backend": "mpi"}, DDP | {"backend": "mpi", "launcher": ["srun", "torchrun"]})
    chosen = {(run.strategy.name, run.shape.backend, run.shape.launcher) for run in found.runs}
    assert chosen == {("mps", "mpi", "srun"), ("ddp", "mpi", "srun")}
    assert [skipped.reasons for skipped in found.skipped] == [
        ("backend mpi needs launcher srun, whose processes MPI knows; the launcher is torchrun",)
    ]
    (reason,) = on_site(tmp_path, DDP | {"backend": "mpi"}, torch_mpi=False).skipped[0].reasons
    assert reason.endswith("somewhere.yaml declares none (environment.torch_mpi); use gloo")


def test_torch_is_asked_what_it_was_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    if dist.is_mpi_available():
        pytest.skip("NOT RUN: this torch was built with MPI")
    assert "gloo" in backends()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"backend: 'mpi' is not allowed; this torch is built with .*gloo"):
        Ranks.join("cpu", "mpi")
