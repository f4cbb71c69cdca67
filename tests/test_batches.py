"""Batches of any structure: counted, divided, chosen from and joined, whatever holds their tensors."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_structure

from relay.task import batches


def nested() -> Any:
    """Seven samples, in every structure at once."""
    ids = torch.arange(7)
    return {"images": (ids * 1.5, ids.view(7, 1).expand(7, 3)), "lengths": [ids], "half": ids.half()}


STRUCTURES = {
    "tensor": torch.arange(7),
    "tuple": (torch.arange(7), torch.arange(14).view(7, 2)),
    "list": [torch.arange(7.0)],
    "dict": OrderedDict(b=torch.arange(7), a=torch.arange(21.0).view(7, 3)),
    "nested": nested(),
}


@pytest.mark.parametrize("batch", STRUCTURES.values(), ids=STRUCTURES)
@pytest.mark.parametrize("pieces", [2, 3, 9])
def test_pieces_are_those_of_torch_and_join_to_the_batch(batch: Any, pieces: int) -> None:
    parts = batches.chunks(batch, pieces)
    assert [batches.count(part) for part in parts] == [len(part) for part in torch.arange(7).chunk(pieces)]
    assert type(parts[0]) is type(batch)
    joined = batches.joined(parts)
    assert tree_structure(joined) == tree_structure(batch)
    torch.testing.assert_close(joined, batch, rtol=0, atol=0)


def test_only_floating_point_numbers_change_their_type() -> None:
    """Tokens and labels stay whole: bfloat16 has no 257."""
    cast = batches.cast(nested(), torch.float64)
    assert [leaf.dtype for leaf in tree_leaves(cast)] == [torch.float64, torch.int64, torch.int64, torch.float64]


def test_the_mean_stands_for_what_has_no_samples() -> None:
    """A model's own loss is that of all its samples, of which parts may have differing numbers."""
    first = {"loss": torch.tensor(1.0), "logits": torch.ones(2), "cache": None}
    joined = batches.joined([first, {"loss": torch.tensor(4.0), "logits": torch.zeros(1), "cache": None}])
    assert joined["loss"] == 2.0
    assert batches.joined([torch.tensor(1.0), torch.tensor(4.0)]) == 2.5
    assert joined["logits"].tolist() == [1, 1, 0]
    assert joined["cache"] is None


@dataclass
class Output:
    """As models return them."""

    loss: torch.Tensor
    logits: torch.Tensor


@dataclass
class MappedOutput(UserDict[str, Any]):
    """As Hugging Face's: a mapping whose items are attributes, too."""

    logits: torch.Tensor
    hidden: Any = None

    def __post_init__(self) -> None:
        self.data = {"logits": self.logits}


@pytest.mark.parametrize(
    "whole",
    [
        Output(torch.tensor(0.5), torch.arange(6.0)),
        MappedOutput(torch.arange(6.0)),
        {"deep": (UserDict(ids=torch.arange(6)), Output(torch.tensor(1.0), torch.arange(6)))},
    ],
    ids=["dataclass", "mapped", "deep"],
)
def test_outputs_of_other_classes_are_opened_too(whole: Any) -> None:
    """torch alone takes such an object for one leaf without tensors: its samples would all be kept, in silence."""
    part = batches.taken(whole if isinstance(whole, MappedOutput) else no_loss(whole), slice(4))
    assert batches.count(part) == 4
    assert type(part) is type(whole)
    cast = batches.cast(whole, torch.float64)
    assert all(leaf.dtype in (torch.float64, torch.int64) for leaf in batches.leaves(cast))


def no_loss(whole: Any) -> Any:
    """With a sample for each number."""
    return batches.each(lambda tensor: tensor if tensor.dim() else tensor.expand(6), whole)
