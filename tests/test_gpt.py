"""The GPT and its mixture of experts: what they compute, how large they are, and that they learn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay.tasks._gpt import MoE
from short_tasks import task


@pytest.fixture(autouse=True)
def _fixed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


# What it computes


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
def test_no_token_sees_a_later_one(name: str) -> None:
    model = task(name, "fp64", options={"width": 64}).model()
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
