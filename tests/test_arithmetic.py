"""What changes the arithmetic from outside is part of what a run, a gate and a reference are."""

from __future__ import annotations

from typing import Any

import pytest

from chain_runs import Bench
from plans import plan
from relay.config import config
from relay.planning.plan import Plan
from relay.spec.arithmetic import Arithmetic, variables_set

pytest_plugins = ["chain_runs"]

BF16 = {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}


def made(**given: Any) -> Plan:
    asked = {"device": "cpu", "comparisons": [{"strategy": "cpu"}]}
    return plan(config.load(asked), gpus=0, **given)


def names(plan: Plan) -> list[set[str]]:
    return [{run.id for run in plan.runs}, set(plan.gates), set(plan.references)]


@pytest.mark.parametrize("other", [Arithmetic("ONEDNN_DEFAULT_FPMATH_MODE=BF16", "2.13.0"), Arithmetic("", "2.12.0")])
def test_runs_gates_and_references_of_other_arithmetic_are_others(other: Arithmetic) -> None:
    usual, planned = made(arithmetic=Arithmetic("", "2.13.0")), made(arithmetic=other)
    for mine, theirs in zip(names(usual), names(planned), strict=True):
        assert not mine & theirs
    (place,) = {run.place for run in planned.runs}
    assert (place.variables, place.torch_version) == (other.variables, other.torch)
    assert [warning for warning in planned.warnings if "environment" in warning] == (
        [f"set in the environment, and so a part of every run: {other.variables}"] if other.variables else []
    )


def test_variables_that_change_nothing_do_not_count() -> None:
    harmless = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "PATH")
    assert variables_set(dict.fromkeys(harmless, "1")) == ""
    assert variables_set({"MKL_CBWR": ""}) == ""
    both = {"TORCHINDUCTOR_USE_FAST_MATH": "1", "MKL_CBWR": "AVX2"}
    assert variables_set(both) == "MKL_CBWR=AVX2; TORCHINDUCTOR_USE_FAST_MATH=1"


@pytest.mark.slow
def test_a_job_that_computes_otherwise_than_planned_ends_with_one_line(bench: Bench) -> None:
    chain = bench.chain("results", total_steps=6)
    ended = chain.segment(**BF16)
    assert ended.status == 1
    assert "Traceback" not in ended.errors
    told = "ONEDNN_DEFAULT_FPMATH_MODE is 'BF16' in its job, and was unset when it was planned"
    assert told in chain.fault()["error"]
