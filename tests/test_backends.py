"""The library by which processes communicate: an axis; refused where the device, the strategy or torch has it not."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from plans import DDP, planned, reasons
from relay.base.errors import UserError
from relay.process.ranks import Ranks, backends

pytest_plugins = ["plans"]
pytestmark = pytest.mark.usefixtures("in_the_project")


@pytest.mark.slow
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


def test_torch_is_asked_what_it_was_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    if dist.is_mpi_available():
        pytest.skip("NOT RUN: this torch was built with MPI")
    assert "gloo" in backends()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"backend: 'mpi' is not allowed; this torch is built with .*gloo"):
        Ranks.join("cpu", "mpi")
