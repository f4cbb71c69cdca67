"""The GPT and its mixture of experts: what they compute, how large they are, and that they learn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay.task.bound import BoundTask
from relay.task.data import Resident
from relay.task.split import Chosen, chosen
from relay.tasks._gpt import MoE
from short_tasks import task

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fixed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def trained_by(name: str, precision: str = "fp64") -> BoundTask:
    """A task in its own width."""
    return task(name, precision, options={"width": 64})


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


# What the planner is told


# What it computes


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
def test_its_initial_parameters_depend_on_the_seed_alone(name: str) -> None:
    built = trained_by(name)
    first, again = built.model().state_dict(), built.model().state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    expanded = "block0.moe.up" if "moe" in name else "block0.up.weight"
    narrowed = "block0.moe.down" if "moe" in name else "block0.down.weight"
    assert first[expanded].std().item() == pytest.approx(0.02, rel=0.03)
    assert first[narrowed].std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)
    assert all(first[key].eq(0).all() for key in first if "bias" in key)
    assert first["block0.norm1.weight"].eq(1).all()


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
def test_no_token_sees_a_later_one(name: str) -> None:
    model = trained_by(name).model()
    tokens = torch.randint(256, (2, 64))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    outputs, others = model(tokens), model(changed)
    assert outputs.shape == (2, 64, 256)
    assert torch.equal(outputs[:, :40], others[:, :40])
    assert (outputs[:, 40:] != others[:, 40:]).any(-1).all()


# The mixture of experts


@pytest.fixture
def moe() -> MoE:
    """Four experts of a width of 8, in float64, unlike each other."""
    made = MoE(8, 4).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def one_by_one(moe: MoE, token: torch.Tensor) -> torch.Tensor:
    """A token's output, from the definition."""
    liking = moe.router(token).softmax(0)
    best = liking.argsort(descending=True)[: moe.chosen].tolist()
    said = [F.gelu(token @ moe.up[e] + moe.up_bias[e]) @ moe.down[e] + moe.down_bias[e] for e in best]
    return sum(liking[e] * each for e, each in zip(best, said, strict=True)) / liking[best].sum()


@pytest.mark.parametrize("chosen", [1, 2])
def test_every_token_gets_the_weighted_mean_of_its_experts(moe: MoE, chosen: int) -> None:
    moe.chosen = chosen
    inputs = torch.randn(3, 5, 8, dtype=torch.float64)
    expected = torch.stack([one_by_one(moe, token) for token in inputs.flatten(0, 1)]).view_as(inputs)
    assert torch.allclose(moe(inputs), expected, atol=1e-13)


def test_no_expert_is_ever_full_and_one_may_have_nothing_to_do(moe: MoE) -> None:
    """All tokens to two experts: each is computed as if it were alone, and the others get gradients of zero."""
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[1:3, 0] = 9.0
    inputs = torch.rand(32, 8, dtype=torch.float64) + 0.1
    outputs = moe(inputs)
    assert torch.allclose(outputs, torch.cat([moe(token[None]) for token in inputs]), atol=1e-13)
    outputs.sum().backward()
    for stacked in (moe.up, moe.up_bias, moe.down, moe.down_bias):
        assert stacked.grad is not None
        assert stacked.grad[[0, 3]].eq(0).all()
        assert stacked.grad[[1, 2]].ne(0).any()


# Learning


@pytest.mark.slow
def test_it_learns_the_projects_text() -> None:
    """From log 256 = 5.55 to well below what the bytes' frequencies alone would give."""
    built = trained_by("gpt-tiny", "fp32")
    train, test = built.split("train"), built.split("test")
    feeding, model = Resident(train, CPU), built.model()
    optimizer = built.optimizer(model.parameters())
    for step in range(100):
        batch = feeding.fetch(chosen(len(train), built.spec.global_batch_size, 1, step))
        optimizer.zero_grad()
        built.loss(built.outputs(model, batch), batch).backward()
        optimizer.step()
    inputs, targets = Resident(test, CPU).fetch(Chosen(torch.arange(len(test))))
    frequencies = torch.bincount(targets.flatten(), minlength=256) / targets.numel()
    by_frequency = -(frequencies * frequencies.clamp_min(1e-9).log()).sum().item()
    with torch.no_grad():
        outputs = model(inputs)
    assert built.loss(outputs, (inputs, targets)).item() < min(2.9, by_frequency - 0.3)
    assert built.metrics(outputs, (inputs, targets))["accuracy"] > 0.25
