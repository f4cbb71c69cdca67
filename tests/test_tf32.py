"""TF32 of matrix products and of convolutions: set apart, proven apart, and never left to torch's defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from plans import CPU, planned, reasons
from relay.equivalence.precision import OUTPUT_LIMITS
from relay.equivalence.trials import GRADIENT_LIMITS, LOSS_LIMITS
from relay.preflight import devices
from relay.process.machine import set_precision
from relay.spec.setting import TF32, Precision
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
        ("bf16", False, False),
    ],
)
def test_both_switches_are_set(precision: str, matrix_products: bool, convolutions: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = not matrix_products, not convolutions
    set_precision(precision)
    assert torch.backends.cuda.matmul.allow_tf32 is matrix_products
    assert torch.backends.cudnn.allow_tf32 is convolutions


@pytest.mark.usefixtures("switches")
def test_preflight_tells_what_runs_set_and_not_torchs_defaults() -> None:
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = True, True
    assert devices.collect("cpu", torchvision_too=False)["torch"]["tf32"] == {"matmul": False, "convolution": False}


@pytest.mark.usefixtures("in_the_project")
def test_each_has_a_gate_and_a_reference_of_its_own() -> None:
    found = planned(GPU | {"precision": ["fp32", *TF32]}, gpus=1)
    assert sorted(gate.computation.precision for gate in found.gates.values()) == sorted(["fp32", *TF32])
    assert sorted(run.computation.precision for run in found.references.values()) == sorted(["fp32", *TF32])


@pytest.mark.usefixtures("in_the_project")
@pytest.mark.parametrize("precision", TF32)
def test_a_cpu_has_none(precision: str) -> None:
    reason = f"precision {precision} is a mode of GPUs, device is cpu; use bf16"
    assert reasons(CPU | {"precision": precision}) == [reason]


def test_every_precision_has_its_limits() -> None:
    precisions = set(get_args(Precision))
    assert set(LOSS_FLOORS) == set(STATE_FLOORS) == precisions
    assert set(OUTPUT_LIMITS) == precisions - {"fp64"}
    assert set(GRADIENT_LIMITS) == set(LOSS_LIMITS) == precisions - {"fp64", "fp32"}
    assert set(evaluated.LOSS_LIMITS) == set(evaluated.ACCURACY_LIMITS) == precisions


def test_no_table_by_precision_knows_tf32_for_both_alone() -> None:
    """Whatever table is added: a run in tf32_matmul looks its limits up there, too."""
    for path in sorted((ROOT / "scripts" / "relay").rglob("*.py")):
        for table in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Dict)):
            names = {key.value for key in table.keys if isinstance(key, ast.Constant)}
            if {"tf32", "bf16"} <= names:
                assert set(TF32) <= names, f"{path}, line {table.lineno}"
