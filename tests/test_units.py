"""Which modules are sharded and recomputed as a whole, in models of any form."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from models import Decoder, Gated, Recurrent, UNet, encoder
from relay.base.errors import UserError
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


def test_layers_of_functional_models_are_units_by_their_size() -> None:
    """The first and the last convolution, and the norm, have less than a fiftieth of the parameters."""
    assert names(UNet(32), torch.zeros(2, 1, 16, 16)) == ["down2", "middle", "up2", "up1"]
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    assert names(layers, torch.zeros(2, 64)) == ["0", "2", "4"]


def test_a_model_within_a_model_is_taken_apart() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = UNet(32)

    assert names(Wrapped()) == ["net.down2", "net.middle", "net.up2", "net.up1"]


@pytest.mark.parametrize("tied", ["read", "shared"])
def test_tied_weights_stay_together(tied: str) -> None:
    """The table is looked up at the start and multiplied at the end: no unit but the model has both."""
    found = names(Decoder(tied=tied, width=32, length=64), torch.zeros(2, 8, dtype=torch.long))
    assert found == ["embed.position", "blocks.0", "blocks.1", "blocks.2"]


def test_what_is_not_called_is_no_unit() -> None:
    class Asked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Gated(8, 16) for _ in range(2)])
            self.read = nn.Linear(8, 8)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                inputs = block.forward(inputs)  # a method's call, which no hook sees
            return inputs @ self.read.weight.to(inputs.dtype)

    found = names(Asked(), torch.zeros(2, 8))
    assert found == [f"blocks.{place}.{layer}" for place in range(2) for layer in ("gate", "up", "down")]


def test_a_model_that_reads_values_is_run_as_it_is() -> None:
    """Lengths of sequences are no numbers on the meta device."""
    model = Recurrent(40)
    model.lstm.dropout = 0.5
    before = torch.get_rng_state()
    assert names(model, torch.zeros(3, 5, 4), torch.tensor([5, 2, 3])) == ["lstm"]
    assert torch.equal(torch.get_rng_state(), before)


def test_statistics_do_not_move_while_a_model_is_looked_at() -> None:
    model = UNet()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert Readings.of(model, [torch.ones(2, 1, 8, 8)], {})
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# The user's own units


def test_units_of_a_users_choice_are_taken_in_the_models_order() -> None:
    model = Decoder()
    own = [model.norm, model.blocks[1], model.blocks[0].down]
    assert [name for name, _ in blocks(model, own)] == ["blocks.0.down", "blocks.1", "norm"]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (lambda model: [nn.Linear(2, 3)], "blocks: Linear Linear(in_features=2, out_features=3, bias=True) is no mod"),
        (lambda model: [model.blocks], "blocks: 'blocks' is a ModuleList, which is never called; allowed: the modules"),
        (lambda model: [model.blocks[0].up, model.blocks[0]], "blocks: 'blocks.0.up' is within 'blocks.0'; allowed"),
    ],
)
def test_a_wrong_choice_is_told_in_one_line(chosen: Any, told: str) -> None:
    model = Decoder()
    with pytest.raises(UserError) as raised:
        blocks(model, chosen(model))
    assert str(raised.value).startswith(told)
    assert "\n" not in str(raised.value)


def test_a_choice_that_tears_tied_weights_apart_is_told() -> None:
    model = Decoder(tied="shared")
    with pytest.raises(
        UserError, match=r"^blocks: 'head.weight' is 'embed.token.weight' too, outside of 'head'; allow"
    ):
        blocks(model, [model.head])


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


def kept(model: nn.Module, inputs: torch.Tensor) -> list[int]:
    """The elements of each tensor that a forward pass keeps for the backward pass."""
    held: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
        model(inputs).sum()
    return held


def test_activations_computed_again_are_not_kept() -> None:
    """What a block of three layers keeps for its backward pass is its input alone; so does a copy of it."""
    model, inputs = nn.Sequential(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))), torch.randn(16, 8)
    assert 16 * 64 in kept(model, inputs)
    recompute.apply(model, [("0", model[0])])
    assert 16 * 64 not in kept(model, inputs)
    assert 16 * 64 not in kept(deepcopy(model), inputs)


def test_copies_of_a_block_compute_with_their_own_weights() -> None:
    """Those of nn.DataParallel hold no parameters: theirs are results, of a copy from the first GPU."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
    recompute.apply(model, [("0", model[0])])
    copied = model[0]._replicate_for_data_parallel()
    for name, parameter in model[0].named_parameters():
        setattr(copied, name, parameter * 2)
    inputs = torch.randn(16, 8)
    assert torch.equal(copied(inputs), 2 * model[0](inputs))
