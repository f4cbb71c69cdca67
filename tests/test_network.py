"""A task's network: precision, activation checkpointing and memory order change how it is computed, never what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from relay.datasets import catalogue
from relay.spec import tasks
from relay.task.network import Computation, Network
from relay.task.task import Task


def task(name: str, **changes: Any) -> Task:
    """A task of the catalogue with ten classes, or a text's 256."""
    spec = tasks.task(name)
    its = catalogue.dataset(spec.dataset)
    values: dict[str, Any] = {"precision": "fp32", "steps_per_epoch": 10, "total_steps": 20} | changes
    return Task(spec, classes=its.classes, seed=5, kind=its.kind, **values)


def images(count: int, side: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up images and their classes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, side, side, generator=generator), torch.randint(0, 10, (count,), generator=generator)


def gradients(network: nn.Module, its: Task, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Those of one loss, by name."""
    its.loss(network(inputs), targets).backward()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def test_a_part_keeps_names_modules_and_computation() -> None:
    whole = task("lenet-digits", recompute=True).model()
    part = whole.part(["conv2", "act2", "pool2"])
    assert set(part.state_dict()) == {"conv2.weight", "conv2.bias"}
    assert part.conv2 is whole.conv2
    assert part.computation is whole.computation


@pytest.mark.parametrize("name", ["lenet-digits", "resnet18-cifar10"])
def test_activations_computed_again_give_the_same_gradients_and_statistics(name: str) -> None:
    """BatchNorm's running statistics would else move twice in a step, in silence."""
    kept, again = task(name), task(name, recompute=True)
    inputs, targets = images(4)
    one, other = kept.model(), again.model()
    first, second = gradients(one, kept, inputs, targets), gradients(other, again, inputs, targets)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_activations_computed_again_are_not_kept() -> None:
    """What a block of three layers keeps for its backward pass is its input alone."""
    held: list[int] = []
    block = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    counts = {}
    for recompute in (False, True):
        network = Network({"block": block}, Computation(recompute=recompute))
        held.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
            outputs = network(torch.randn(16, 8))
        counts[recompute] = 16 * 64 in held
        outputs.sum().backward()
    assert counts == {False: True, True: False}


def test_copies_of_a_network_compute_their_activations_again_too() -> None:
    """Those of nn.DataParallel hold no parameters: theirs are results, of a copy from the first GPU."""
    network = Network({"first": nn.Linear(8, 64), "act": nn.Tanh()}, Computation(recompute=True))
    copied = network._replicate_for_data_parallel()
    for name, layer in network.named_children():
        copied._modules[name] = layer._replicate_for_data_parallel()
        for its, parameter in layer.named_parameters():
            setattr(copied._modules[name], its, parameter * 1)
    assert not list(copied.first.parameters())
    calls: list[int] = []
    copied.first.register_forward_pre_hook(lambda *_: calls.append(1))
    copied(torch.randn(16, 8)).sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_low_precision_is_that_of_products_alone(precision: str, dtype: torch.dtype) -> None:
    """Parameters, gradients and the loss stay in float32, as the optimiser wants them."""
    its = task("lenet-digits", precision=precision)
    network = its.model()
    inputs, targets = images(4)
    seen: list[torch.dtype] = []
    network.fc1.register_forward_hook(lambda _, __, outputs: seen.append(outputs.dtype))
    outputs = network(inputs)
    loss = its.loss(outputs, targets)
    loss.backward()
    assert seen == [dtype]
    assert outputs.dtype == dtype
    assert loss.dtype == torch.float32
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {torch.float32}
    exact = task("lenet-digits")
    assert float(loss) == pytest.approx(float(exact.loss(exact.model()(inputs), targets)), rel=2e-2)


def test_channels_last_is_the_same_function_in_another_order_of_memory() -> None:
    plain, ordered = task("lenet-digits"), task("lenet-digits", channels_last=True)
    one, other = plain.model(), ordered.model()
    seen: list[bool] = []
    other.conv1.register_forward_hook(
        lambda _, __, outputs: seen.append(outputs.is_contiguous(memory_format=torch.channels_last))
    )
    inputs, _ = images(4)
    assert torch.allclose(one(inputs), other(inputs), atol=1e-6)
    assert seen == [True]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.slow
def test_a_compiled_network_trains_the_same() -> None:
    plain, compiled = task("lenet-digits"), task("lenet-digits", compiled=True)
    inputs, targets = images(4)
    one, other = plain.model(), compiled.model()
    assert list(one.state_dict()) == list(other.state_dict())
    first, second = gradients(one, plain, inputs, targets), gradients(other, compiled, inputs, targets)
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)
    assert torch._dynamo.utils.counters["frames"]["ok"] >= 1  # it was compiled indeed


def test_texts_are_classified_token_by_token() -> None:
    its = task("gpt-tiny")
    network = its.model()
    tokens = torch.randint(0, 256, (3, 64), generator=torch.Generator().manual_seed(1))
    outputs = network(tokens)
    assert outputs.shape == (3, 64, 256)
    by_hand = torch.stack([-outputs[i].log_softmax(-1)[range(64), tokens[i]].mean() for i in range(3)]).mean()
    assert float(its.loss(outputs, tokens)) == pytest.approx(float(by_hand), rel=1e-5)
    right = torch.zeros(3, 64, 256)
    right[0].scatter_(-1, tokens[0, :, None], 1.0)  # the first sample's tokens are all right
    right[1:, :, 7] = 1.0
    expected = 1 + sum(float((tokens[i] == 7).double().mean()) for i in (1, 2))
    assert its.correct(right, tokens) == pytest.approx(expected)
    assert its.example(2).dtype == torch.int64


def test_images_and_vectors_keep_their_loss() -> None:
    """Flattening for texts changes nothing for (N, classes) logits; a regression's samples are none of it."""
    inputs, targets = images(4)
    its = task("lenet-digits")
    outputs = its.model()(inputs)
    assert torch.equal(its.loss(outputs, targets), nn.functional.cross_entropy(outputs, targets))
    assert its.correct(outputs, outputs.argmax(1)) == 4.0
    line = replace(tasks.task("linear-random10"))
    vectors = Task(line, classes=None, seed=5, precision="fp64", steps_per_epoch=10, total_steps=20, kind="vectors")
    loss = vectors.loss(torch.ones(4, 1, dtype=torch.float64), torch.zeros(4, 1))
    assert float(loss) == 1.0
