"""TF32 of matrix products and of convolutions, never left to torch's defaults; and pictures with channels last."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch

from plans import CPU, ROOT, only, planned
from relay.base.errors import UserError
from relay.process.machine import check_precision, set_precision
from relay.spec.setting import TF32, Precision
from relay.spec.site import load_site


@pytest.fixture
def switches() -> Iterator[None]:
    """torch's own, which the test changes."""
    known = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = known


@pytest.mark.usefixtures("switches")
def test_both_switches_are_set() -> None:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    allowed = {"fp32": (False, False), "tf32": (True, True)}
    for precision, both in (allowed | {"tf32_matmul": (True, False), "tf32_convolution": (False, True)}).items():
        products.allow_tf32, convolutions.allow_tf32 = (not each for each in both)
        set_precision(precision)
        assert (products.allow_tf32, convolutions.allow_tf32) == both, precision


def test_tf32_is_not_planned_on_gpus_that_have_none() -> None:
    asked = {"strategy": "single_gpu", "precision": "tf32_matmul"}
    assert planned(asked, site=load_site("narval", ROOT)).settings
    (skipped,) = planned(asked, site=load_site("arc", ROOT)).skipped
    said = "precision tf32_matmul would be fp32 (compute capability 7.0, it needs 8.0); use fp32"
    assert said in skipped.reasons[0]


def test_the_real_gpu_is_asked_before_anything_is_measured(monkeypatch, capsys) -> None:
    (run,) = planned(CPU).runs
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    for precision in TF32:
        with pytest.raises(
            UserError, match=rf"Tesla V100: precision {precision} would be fp32 .* it needs 8.0\); use fp32"
        ):
            check_precision(run, precision, gpu)
        check_precision(run, precision, torch.device("cpu"))
    check_precision(run, "fp16", gpu)
    assert not capsys.readouterr().out
    check_precision(run, "bf16", gpu)
    assert "note: " in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for precision in get_args(Precision):
        check_precision(run, precision, gpu)
    assert not capsys.readouterr().out


# Pictures with channels last: the default where a model computes the same so, and where it is usually faster

PIPELINE: dict[str, Any] = {"strategy": "pipeline", "devices_per_node": 2}
PARTED = {"schedule": "interleaved_zero_bubble", "micro_batches": 4}


def test_what_a_plan_takes_where_nobody_says() -> None:
    def last(comparison: dict[str, Any], task: str = "lenet-digits", **here: Any) -> bool:
        return only(comparison, task=task, **here).computation.channels_last

    assert last(CPU)
    assert not last(CPU, "resnet18-tiny")
    assert not last(PIPELINE | {"options": PARTED})
    assert last({"strategy": "single_gpu", "precision": "bf16"}, gpus=1, device="cuda")


def test_a_model_that_cannot_be_computed_so_is_skipped_with_the_reason() -> None:
    (skip,) = planned(CPU | {"channels_last": True}, task="resnet18-tiny").skipped
    assert skip.reasons == ("channels_last is not for resnet18-tiny: on CPUs its model cannot be computed so",)
