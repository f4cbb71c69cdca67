"""A failed gate says where: the first step and the first parameter that differ, in the verdict and on the terminal."""

from __future__ import annotations

import pytest

from gate_runs import FEW_STEPS, Gates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "where"),
    [
        ("wrong_single_bias", "first differs at step 1 in fc3.bias ("),
        ("wrong_stale_checkpoint", "first differs after a checkpoint was loaded, in conv1.weight ("),
    ],
)
def test_a_failed_gate_says_where(gates: Gates, strategy: str, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    verdict = gates.verdict(strategy, steps=FEW_STEPS, global_batch_size=16)
    assert verdict["where"].startswith(where)
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "NOT equivalent" in line]
    assert f"; {verdict['where']}" in line
