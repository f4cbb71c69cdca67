"""Several ranks on one GPU: the self-test alone lets them share it, by an NCCL that can, and says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import fake_cuda
from planned_preflights import recorded
from preflight_runs import says
from relay.base.errors import UserError
from relay.planning import one_gpu as planned
from relay.planning.config import load
from relay.planning.one_gpu import ALONE, Sharing
from relay.planning.planner import plan
from relay.preflight.checks import check_all
from relay.process import mps_daemon, one_gpu
from relay.selftest.parts import FAULTS
from relay.spec.setting import Shape
from relay.strategies import _deepspeed_library
from test_mps import CONTROL, STAND_IN, until

OLD, NEW = 22809, 23007
TORCH = """
import ctypes, sys, types
version = types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)))
"""
DDP = Shape(device="cuda", backend="nccl", devices_per_node=2)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose torch is a stand-in with NCCL 2.28.9, and nothing that a test before has left."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in (one_gpu.VARIABLES, planned.NCCL, "LD_PRELOAD", *mps_daemon.FOLDERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(planned, "_daemon", [])


def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int = NEW) -> tuple[Sharing, Path]:
    """What is decided on one GPU with an NCCL of this version in a folder that is named, and its library."""
    library = fake_cuda.nccl(tmp_path / "unpacked", version)
    monkeypatch.setenv(planned.NCCL, str(tmp_path))
    monkeypatch.setenv(one_gpu.VARIABLES, "")  # put back after the test
    return planned.of_this_machine(lambda: 1), library


def test_a_newer_nccl_of_a_folder_lets_four_ranks_share_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, library = shared(tmp_path, monkeypatch)
    assert found == Sharing(4)
    assert one_gpu.variables(DDP) == planned.SHARING | {"LD_PRELOAD": str(library)}
    others = [Shape(device="cuda", backend="gloo", processes_per_device=2), Shape(device="cuda"), Shape(), None]
    assert not any(one_gpu.variables(shape) for shape in others if shape)


def test_an_older_nccl_names_the_wheel_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = shared(tmp_path, monkeypatch, OLD)
    assert found.ranks == 1
    assert "torch has 2.28.9" in found.why_not
    assert "nvidia-nccl-cu13==2.30.7`, then set TORCH_RELAY_NCCL=FOLDER" in found.why_not
    assert one_gpu.variables(DDP) == {}


def test_a_folder_without_nccl_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(planned.NCCL, str(tmp_path / "torch"))
    with pytest.raises(UserError, match=r"TORCH_RELAY_NCCL: '.*/torch' has no libnccl.so.2"):
        planned.of_this_machine(lambda: 1)


@pytest.mark.parametrize("gpus", [0, 2])
def test_other_machines_share_nothing(gpus: int) -> None:
    assert planned.of_this_machine(lambda: gpus) == ALONE


def test_ranks_of_nccl_share_and_the_rest_is_skipped_with_its_reason() -> None:
    asked = load(
        {
            "task": "lenet-digits",
            "comparisons": [
                {"strategy": "ddp", "devices_per_node": [2, 4, 8]},
                {"strategy": "ddp", "devices_per_node": 2, "backend": "gloo"},
                {"strategy": "data_parallel", "devices_per_node": 2},
            ],
        }
    )
    made = plan(asked, gpus=1, sharing=Sharing(4))
    assert {run.shape.devices_per_node for run in made.runs} == {2, 4}
    reasons = [" ".join(each.reasons) for each in made.skipped]
    assert len(reasons) == 3
    assert "the same GPU twice" in reasons[2]
    why = plan(asked, gpus=1, sharing=Sharing(why_not="fetch a wheel"))
    assert not why.runs
    assert why.skipped[0].reasons == ("devices_per_node is 2, 1 GPU can be used here; fetch a wheel",)
    assert why.skipped[-1].reasons == ("devices_per_node is 2, 1 GPU can be used here",)


def test_faults_are_planted_without_mps_and_two_ranks_on_a_gpu_stay_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under MPS one client's end may be the others', too."""
    told = json.dumps({one_gpu.SHARED: "1", "CUDA_MPS_PIPE_DIRECTORY": "/there"})
    monkeypatch.setenv(one_gpu.VARIABLES, told)
    with one_gpu.without_mps():
        assert one_gpu.variables(DDP)["CUDA_MPS_PIPE_DIRECTORY"] == one_gpu.NO_DAEMON
    assert one_gpu.variables(DDP) == json.loads(told)
    assert FAULTS["duplicate_gpu"].variables["nccl"][one_gpu.SHARED] == "0"


def test_the_daemon_lives_as_long_as_the_selftest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared(tmp_path, monkeypatch)
    program = tmp_path / "bin" / CONTROL
    program.parent.mkdir()
    program.write_text(STAND_IN.format(refuses=""))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "none"))  # where no daemon of the machine is
    planned.begin_mps()
    pipe = Path(one_gpu.variables(DDP)["CUDA_MPS_PIPE_DIRECTORY"])
    assert (pipe / "daemon").is_file()
    (keeper,) = planned._daemon
    assert keeper.stdin
    keeper.stdin.close()  # as the kernel does at the driver's end, however it ends
    until(lambda: not pipe.exists())
    keeper.wait()


def test_without_mps_the_ranks_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shared(tmp_path, monkeypatch)
    planned.begin_mps()
    assert f"note: no MPS: {CONTROL} is not on the PATH; the ranks on the GPU take turns" in capfd.readouterr().err
    assert "CUDA_MPS_PIPE_DIRECTORY" not in one_gpu.variables(DDP)


def test_a_preflight_stops_at_a_shared_gpu_unless_nccl_is_told_of_it() -> None:
    facts = recorded()
    for rank in facts["ranks"]:
        rank |= {"node": "g1", "device_index": 0, "cuda": {**rank["cuda"], "devices": rank["cuda"]["devices"][:1]}}
    alone = {found.check: found for found in check_all(facts)}
    assert says(alone["one GPU for each rank"], "stop", "NCCL refuses that", "backend gloo")
    assert not alone["visible GPUs"].ok
    for rank in facts["ranks"]:
        rank["environment"][one_gpu.SHARED] = "1"
    shared = {found.check: found for found in check_all(facts)}
    assert says(shared["one GPU for each rank"], "note", f"which {one_gpu.SHARED} allows", "no speed")
    assert "visible GPUs" not in shared


def test_deepspeed_gets_a_local_rank_that_names_this_ranks_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "")
    monkeypatch.setenv("LOCAL_RANK", "3")
    _deepspeed_library.name_device(torch.device("cpu"))
    assert os.environ["LOCAL_RANK"] == "3"
    _deepspeed_library.name_device(torch.device("cuda", 0))
    assert (os.environ["LOCAL_RANK"], os.environ["DS_ACCELERATOR"]) == ("0", "cuda")
