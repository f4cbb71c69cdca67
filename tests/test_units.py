"""Which modules are sharded and recomputed as a whole, in models of any form."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from models import Decoder, UNet, encoder
from relay.task import recompute
from relay.task.calls import Readings
from relay.task.units import blocks


def names(model: nn.Module, *arguments: Any) -> list[str]:
    """The names of its units; with arguments also by what is seen of a forward pass."""
    readings = Readings.of(model, arguments, {}) if arguments else None
    assert readings is not None or not arguments
    return [name for name, _ in blocks(model, readings=readings)]


def test_layers_of_a_transformer_are_units() -> None:
    assert names(encoder(), torch.zeros(2, 4, 16)) == ["layers.0", "layers.1"]


@pytest.mark.parametrize("tied", ["read", "shared"])
def test_tied_weights_stay_together(tied: str) -> None:
    """The table is looked up at the start and multiplied at the end: no unit but the model has both."""
    found = names(Decoder(tied=tied, width=32, length=64), torch.zeros(2, 8, dtype=torch.long))
    assert found == ["embed.position", "blocks.0", "blocks.1", "blocks.2"]


def test_statistics_do_not_move_while_a_model_is_looked_at() -> None:
    model = UNet()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert Readings.of(model, [torch.ones(2, 1, 8, 8)], {})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# The user's own units


# Activations that are computed again


def gradients(model: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)  # for what is dropped
    model.zero_grad()
    model(inputs).square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (UNet(32), torch.randn(4, 1, 8, 8)),
        (encoder(dropout=0.1), torch.randn(2, 4, 16)),
    ],
    ids=["unet", "encoder"],
)
def test_activations_computed_again_give_the_same_gradients_and_statistics(
    model: nn.Module, inputs: torch.Tensor
) -> None:
    """BatchNorm's running statistics would else move twice in a step, in silence; dropout would drop others."""
    again = deepcopy(model)
    recompute.apply(again, blocks(again))
    first, second = gradients(model, inputs), gradients(again, inputs)
    assert list(first) == list(second)
    assert list(model.state_dict()) == list(again.state_dict())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), again.buffers(), strict=True))


def test_copies_of_a_block_compute_with_their_own_weights() -> None:
    """Those of nn.DataParallel hold no parameters: theirs are results, of a copy from the first GPU."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
    recompute.apply(model, [("0", model[0])])
    copied = model[0]._replicate_for_data_parallel()
    for name, parameter in model[0].named_parameters():
        setattr(copied, name, parameter * 2)
    inputs = torch.randn(16, 8)
    assert torch.equal(copied(inputs), 2 * model[0](inputs))
