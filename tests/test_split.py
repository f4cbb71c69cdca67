"""What a step reads: the same samples for a seed, an epoch and a position; and batches of any structure."""

import random
from collections import OrderedDict, UserDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_leaves, tree_structure
from torch.utils.data import DataLoader, Dataset, TensorDataset

import relay
from relay.task import batches
from relay.task.data import Mapped, Resident, Streamed
from relay.task.split import Chosen, Split, spread

CPU = torch.device("cpu")
STEPS = [Chosen(torch.tensor([3, 0, 5, 1]), 0), Chosen(torch.tensor([3, 6, 2, 4]), 1)]
WORKERS = [0, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", [64, 10, 3, 0])
def test_samples_that_are_looked_at_are_of_all_parts_and_of_classes_that_take_turns(count: int) -> None:
    found = spread(count, 8).tolist()
    assert (len(found), found) == (min(count, 8), sorted(set(found)))
    assert not found or max(found) >= 0.75 * (count - 1)
    assert len({each % 3 for each in found}) == min(count, 3)


class Drawn(Dataset[Any]):
    """Samples that torch, numpy and Python draw: what they have in common with the usual augmentations."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "place": index,
            "torch": torch.randn(2),
            "numpy": np.random.standard_normal(2),
            "python": (random.random(), random.gauss(0, 1)),
        }


class Lengths(Dataset[Any]):
    """Sequences of differing lengths."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((index + 1, 2), float(index))


class Padded(relay.Task):
    """Sequences as a batch: padded to the longest, with noise that the joining draws."""

    def collate_fn(self, samples: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        padded = pad_sequence(list(samples), batch_first=True)
        return {"padded": padded + torch.rand(()), "lengths": torch.tensor([len(each) for each in samples])}


def split(dataset: Any, task: relay.Task | None = None, seed: int = 5, dtype: torch.dtype = torch.float32) -> Split:
    return Split(task or relay.Task(), dataset, seed, dtype)


def same(one: Any, other: Any) -> None:
    """Equal bits and types in an equal structure."""
    assert tree_structure(one) == tree_structure(other)
    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("dataset", "task"), [(Drawn(), relay.Task()), (Lengths(), Padded())], ids=["drawn", "padded"])
def test_all_ways_read_the_same_random_samples(dataset: Any, task: relay.Task, workers: int) -> None:
    streamed = list(Streamed(split(dataset, task), CPU, workers).batches(iter(STEPS)))
    mapped = list(Mapped(split(dataset, task), CPU).batches(iter(STEPS)))
    for one, other in zip(streamed, mapped, strict=True):
        same(one, other)


def test_a_sample_depends_on_seed_epoch_and_position_alone() -> None:
    """Not on its neighbours, nor on what the process has drawn: a resumed run, or one of more ranks, reads it alike."""
    torch.manual_seed(1)
    whole = split(Drawn()).read(STEPS[0])
    torch.manual_seed(2)
    for place, position in enumerate(STEPS[0].positions.tolist()):
        same(split(Drawn()).read(Chosen(torch.tensor([position]))), batches.taken(whole, slice(place, place + 1)))
    for other in (split(Drawn()).read(Chosen(STEPS[0].positions, 1)), split(Drawn(), seed=6).read(STEPS[0])):
        assert not any(torch.equal(other[name], whole[name]) for name in ("torch", "numpy"))
        assert torch.equal(other["place"], whole["place"])


@pytest.mark.parametrize("workers", WORKERS)
def test_reading_leaves_the_generators_where_they_were(workers: int) -> None:
    """Dropout draws from them: it would part from that of a run with other workers."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    for dataset, task in ((Drawn(), relay.Task()), (Lengths(), Padded())):
        assert len(list(Streamed(split(dataset, task), CPU, workers).batches(iter(STEPS)))) == 2
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]


def test_tensors_in_memory_give_the_bits_of_single_samples() -> None:
    """A TensorDataset is indexed as a whole. Tokens stay whole numbers; scalars keep their shape."""
    stored = TensorDataset(torch.rand(7, 3, dtype=torch.float32), torch.arange(7) % 3, torch.rand(7))
    plain = DataLoader(stored, batch_sampler=[step.positions.tolist() for step in STEPS])
    resident = Resident(split(stored, dtype=torch.float64), CPU).batches(iter(STEPS))
    for one, by_torch in zip(resident, plain, strict=True):
        same(one, batches.cast(tuple(by_torch), torch.float64))


class Twice(TensorDataset):
    """A user's own way to read a TensorDataset."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class AsDict(relay.Task):
    def collate_fn(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        return {"numbers": torch.stack([sample[0] for sample in samples])}


def test_what_users_do_with_a_tensor_dataset_is_done() -> None:
    """A class of their own and their `collate_fn` count, also where tensors could be indexed as a whole."""
    stored = torch.arange(7.0)
    assert Mapped(split(Twice(stored)), CPU).fetch(STEPS[0])[0].tolist() == [6, 0, 10, 2]
    joined = split(TensorDataset(stored), AsDict())
    for feed in (Mapped(joined, CPU), Resident(joined, CPU)):
        assert feed.fetch(STEPS[0])["numbers"].tolist() == [3, 0, 5, 1]


class Pixels(relay.Task):
    """Counts the batches that it transforms."""

    transformed = 0

    def transform(self, batch: Any) -> Any:
        self.transformed += 1
        return batch[0].float() / 255, batch[1]


class Centred(Pixels):
    """What becomes of a sample depends on its batch."""

    def transform(self, batch: Any) -> Any:
        pixels, labels = super().transform(batch)
        return pixels - pixels.mean(), labels


class OfFour(Pixels):
    def transform(self, batch: Any) -> Any:
        assert len(batch[0]) == 4
        return super().transform(batch)


class InPlace(Pixels):
    """Changes what it is given."""

    def transform(self, batch: Any) -> Any:
        return super().transform((batch[0].add_(1), batch[1]))


PIXELS = torch.arange(7 * 2 * 3 * 3, dtype=torch.uint8).view(7, 2, 3, 3)


@pytest.mark.parametrize(
    ("task", "ready", "channels_last"),
    [(Pixels, True, True), (InPlace, True, False), (Centred, False, True), (OfFour, False, False)],
)
def test_samples_in_memory_are_transformed_once_where_that_is_the_same(task, ready, channels_last) -> None:
    stored = TensorDataset(PIXELS.clone(), torch.arange(7))
    its = Split(task(), stored, 5, torch.float64, channels_last=channels_last)
    resident = Resident(its, CPU)
    before = its.task.transformed
    found = list(resident.batches(iter(STEPS)))
    assert its.task.transformed == before + (0 if ready else len(STEPS))
    for one, other in zip(found, Mapped(its, CPU).batches(iter(STEPS)), strict=True):
        same(one, other)
        assert (one[0].dtype, one[1].dtype) == (torch.float64, torch.int64)
        assert one[0].stride() == other[0].stride()
        assert one[0].is_contiguous(memory_format=torch.channels_last) == channels_last
    assert torch.equal(stored.tensors[0], PIXELS)
    assert len({images.data_ptr() for images, _ in found}) == len(STEPS), "a step may change its batch"


# Batches of any structure: counted, divided, chosen from and joined, whatever holds their tensors


IDS = torch.arange(7)
# Seven samples, in every structure at once.
NESTED: Any = {"images": (IDS * 1.5, IDS.view(7, 1).expand(7, 3)), "lengths": [IDS], "half": IDS.half()}
STRUCTURES = {
    "tensor": torch.arange(7),
    "tuple": (torch.arange(7), torch.arange(14).view(7, 2)),
    "list": [torch.arange(7.0)],
    "dict": OrderedDict(b=torch.arange(7), a=torch.arange(21.0).view(7, 3)),
    "nested": NESTED,
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


DEEP = {"deep": (UserDict(ids=torch.arange(6)), Output(torch.tensor(1.0), torch.arange(6)))}


@pytest.mark.parametrize("whole", [Output(torch.tensor(0.5), torch.arange(6.0)), MappedOutput(torch.arange(6.0)), DEEP])
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
