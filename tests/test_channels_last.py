"""Pictures with channels last: the default where a model computes the same so, and where it is usually faster."""

from __future__ import annotations

from typing import Any

import pytest

from plans import only, planned

CPU: dict[str, Any] = {"strategy": "cpu"}
PIPELINE: dict[str, Any] = {"strategy": "pipeline", "devices_per_node": 2}
PARTED = {"schedule": "interleaved_zero_bubble", "micro_batches": 4}


@pytest.mark.parametrize(
    ("comparison", "config", "last"),
    [
        (CPU, {}, True),
        (CPU, {"task": "resnet18-tiny"}, False),
        (PIPELINE | {"options": PARTED}, {}, False),
        ({"strategy": "single_gpu", "precision": "bf16"}, {"gpus": 1, "device": "cuda"}, True),
    ],
)
def test_what_a_plan_takes_where_nobody_says(comparison: dict[str, Any], config: dict[str, Any], last: bool) -> None:
    run = only(comparison, **{"task": "lenet-digits", **config})
    assert run.computation.channels_last is last


def test_a_model_that_cannot_be_computed_so_is_skipped_with_the_reason() -> None:
    (skip,) = planned(CPU | {"channels_last": True}, task="resnet18-tiny").skipped
    assert skip.reasons == ("channels_last is not for resnet18-tiny: on CPUs its model cannot be computed so",)
