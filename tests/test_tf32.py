"""TF32 of matrix products and of convolutions: set apart, proven apart, and never left to torch's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from plans import CPU, planned
from relay.base.errors import UserError
from relay.equivalence.precision import OUTPUT_LIMITS
from relay.equivalence.trials import GRADIENT_LIMITS, LOSS_LIMITS
from relay.planning.config import load
from relay.planning.planner import plan
from relay.process.machine import check_precision, set_precision
from relay.spec.cuda import generation_of
from relay.spec.setting import TF32, Precision
from relay.spec.site import load_site, names
from relay.spot_check import evaluated
from relay.spot_check.figures import LOSS_FLOORS, STATE_FLOORS

pytest_plugins = ["plans"]
ROOT = Path(__file__).resolve().parents[1]
GPU = {"strategy": "single_gpu"}


@pytest.fixture
def switches() -> Iterator[None]:
    """torch's own, which the test changes."""
    known = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = known


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(
    ("precision", "matrix_products", "convolutions"),
    [
        ("fp32", False, False),
        ("tf32", True, True),
        ("tf32_matmul", True, False),
        ("tf32_convolution", False, True),
    ],
)
def test_both_switches_are_set(precision: str, matrix_products: bool, convolutions: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = not matrix_products, not convolutions
    set_precision(precision)
    assert torch.backends.cuda.matmul.allow_tf32 is matrix_products
    assert torch.backends.cudnn.allow_tf32 is convolutions


@pytest.mark.usefixtures("in_the_project")
def test_each_has_a_gate_and_a_reference_of_its_own() -> None:
    found = planned(GPU | {"precision": ["fp32", *TF32]}, gpus=1)
    assert sorted(gate.computation.precision for gate in found.gates.values()) == sorted(["fp32", *TF32])
    assert sorted(run.computation.precision for run in found.references.values()) == sorted(["fp32", *TF32])


def test_every_precision_has_its_limits() -> None:
    precisions = set(get_args(Precision))
    assert set(LOSS_FLOORS) == set(STATE_FLOORS) == precisions
    assert set(OUTPUT_LIMITS) == precisions - {"fp64"}
    assert set(GRADIENT_LIMITS) == set(LOSS_LIMITS) == precisions - {"fp64", "fp32"}
    assert set(evaluated.LOSS_LIMITS) == set(evaluated.METRIC_LIMITS) == precisions


@pytest.mark.parametrize(
    ("site", "precision", "said"),
    [
        ("arc", "tf32_matmul", "precision tf32_matmul would be fp32 (compute capability 7.0, it needs 8.0); use fp32"),
        ("narval", "tf32", None),
    ],
)
def test_tf32_is_not_planned_on_gpus_that_have_none(site: str, precision: str, said: str | None) -> None:
    made = plan(load({"comparisons": [GPU | {"precision": precision}]}), site=load_site(site, ROOT))
    assert bool(made.settings) is (said is None)
    assert not said or said in made.skipped[0].reasons[0]


def test_the_real_gpu_is_asked_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_every_gpu_that_a_site_names_has_a_known_capability() -> None:
    for site in (load_site(name, ROOT) for name in names(ROOT)):
        for partition in site.partitions:
            assert (partition.device == "cuda") is (partition.capability is not None), f"{site.name}: {partition.shown}"
            assert partition.gpu_name is None or generation_of(partition.gpu_name) == partition.generation
    assert generation_of("nvidia_a10") == generation_of("a100_3g.20gb") == "ampere"
    assert generation_of("l40s") == "ada"
    assert generation_of("rtx5090") == "blackwell"
    assert generation_of("mi300") is None
