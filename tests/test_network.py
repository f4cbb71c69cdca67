"""A task's model: precision, activation checkpointing and memory order change how it is computed, never what."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from own_tasks import OWN, bound, spec
from refusals import refusal
from relay.equivalence.reference import check_float32
from relay.task.batches import Batch
from relay.task.bound import BoundTask

LENET, UNET = (str(OWN / f"{name}.py") for name in ("lenet_random", "unet"))


def task(name: str, precision: str = "fp32", **settings: Any) -> BoundTask:
    options = {"dropout": 0.0} if name == UNET else {}
    return bound(spec(name, **options), precision, Path(), **settings)


def gradients(its: BoundTask, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """Those of one loss, by name."""
    its.loss(its.outputs(model, batch), batch).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_activations_computed_again_give_the_same_gradients_and_statistics() -> None:
    """BatchNorm's running statistics would else move twice in a step, in silence."""
    kept, again = task(UNET), task(UNET, recompute=True)
    batch, one, other = kept.example(4), kept.model(), again.model()
    first, second = gradients(kept, one, batch), gradients(again, other, batch)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_low_precision_is_that_of_products_alone() -> None:
    """Parameters, gradients and the loss stay in float32, as the optimiser wants them."""
    its = task(LENET, "bf16")
    model, batch = its.model(), its.example(4)
    outputs = its.outputs(model, batch)
    loss = its.loss(outputs, batch)
    loss.backward()
    assert outputs.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    exact = task(LENET)
    assert float(loss) == pytest.approx(float(exact.loss(exact.outputs(exact.model(), batch), batch)), rel=2e-2)


def test_channels_last_is_the_same_function_in_another_order_of_memory() -> None:
    plain, ordered = task(LENET), task(LENET, channels_last=True)
    one, other, batch = plain.model(), ordered.model(), plain.example(4)
    in_order = ordered.example(4)
    seen: list[bool] = []
    other.conv1.register_forward_hook(
        lambda _, __, outputs: seen.append(outputs.is_contiguous(memory_format=torch.channels_last))
    )
    assert torch.allclose(plain.outputs(one, batch), ordered.outputs(other, in_order), atol=1e-6)
    assert seen == [True]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.long
def test_a_compiled_model_trains_the_same() -> None:
    """No other test holds a compiled model against a plain one."""
    plain, compiled = task(UNET), task(UNET, compiled=True)
    batch, one, other = plain.example(4), plain.model(), compiled.model()
    assert list(one.state_dict()) == list(other.state_dict())
    first, second = gradients(plain, one, batch), gradients(compiled, other, batch)
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)
    assert torch._dynamo.utils.counters["frames"]["ok"] >= 1  # it was compiled indeed


# The reference's float32 arithmetic is held against its own in float64

CPU = torch.device("cpu")


def test_float32_that_is_lowered_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast in the place of a variable: it lowers float32 alone, too."""
    check_float32("fp32", CPU)  # as it is, it passes
    convolved = torch.nn.functional.conv2d

    def lowered(inputs: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=inputs.dtype == torch.float32):
            return convolved(inputs, *others, **named).to(inputs.dtype)

    monkeypatch.setattr(torch.nn.functional, "conv2d", lowered)
    assert "from those in float64; allowed is 1e-05" in refusal(check_float32, "fp32", CPU)
    for no_float32 in ("fp64", "tf32"):
        check_float32(no_float32, CPU)
