"""Batches: the same samples in the same order, whatever feeds them and however many processes share them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from chain_runs import DIGITS, DROPOUT, LIKE_CIFAR, LIKE_MNIST, TEXT, VECTORS
from relay.base.errors import UserError
from relay.spec.dataset import DatasetSpec
from relay.spec.tasks import TaskSpec, task
from relay.task import data
from relay.task.data import Mapped, Resident, Split, Streamed, batch_indices, feeder

pytest_plugins = ["chain_runs"]

CPU = torch.device("cpu")
# Each dataset with a network's input that fits it; the digits are magnified from 1 x 8 x 8 to 3 x 32 x 32.
FITTING = {
    "digits": (DIGITS, task("lenet-digits")),
    "like-cifar": (LIKE_CIFAR, task("lenet-synthetic")),
    "like-mnist": (LIKE_MNIST, DROPOUT),
    "vectors": (VECTORS, task("linear-random10")),
    "text": (TEXT, task("gpt-tiny")),
}


def split_of(prepared: Path, name: str) -> Split:
    """The training split of a fitting pair."""
    spec, its_task = FITTING[name]
    return Split(prepared / spec.directory_name, "train", its_task)


# Global batches


def test_a_global_batch_depends_on_seed_and_step_alone() -> None:
    """Whatever was asked before, and whatever the process's own generator did."""
    asked = {step: batch_indices(1437, 64, 7, step) for step in (0, 21, 22, 500)}
    for step in (500, 22, 0, 21):
        data._order.cache_clear()
        torch.manual_seed(step)
        before = torch.get_rng_state()
        assert torch.equal(batch_indices(1437, 64, 7, step), asked[step])
        assert torch.equal(torch.get_rng_state(), before), "drew from the generator that dropout draws from"


def test_the_order_is_that_of_older_versions() -> None:
    """A run is gone on with after an update: these values must never change."""
    assert batch_indices(1437, 64, 0, 0)[:5].tolist() == [544, 1137, 1209, 819, 548]
    assert batch_indices(1437, 64, 1, 25)[:5].tolist() == [917, 563, 960, 381, 19]


@pytest.mark.parametrize(("count", "batch"), [(1437, 64), (128, 64), (77, 77), (301, 10)])
def test_an_epoch_holds_no_sample_twice_and_the_next_is_another(count: int, batch: int) -> None:
    steps = count // batch
    epochs = [torch.cat([batch_indices(count, batch, 3, e * steps + s) for s in range(steps)]) for e in range(4)]
    for epoch in epochs:
        assert len(epoch) == steps * batch
        assert len(epoch.unique()) == len(epoch)
        assert 0 <= epoch.min() <= epoch.max() < count
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(epochs))


def test_what_the_last_partial_batch_leaves_out_is_trained_in_other_epochs() -> None:
    seen = torch.cat([batch_indices(100, 64, 0, epoch) for epoch in range(40)])
    assert len(seen.unique()) == 100


def test_seeds_and_epochs_do_not_share_an_order() -> None:
    """Seed 0 in epoch 1 is not seed 1 in epoch 0, as it would be with their sum."""
    first = {tuple(batch_indices(64, 64, seed, epoch).tolist()) for seed in range(20) for epoch in range(20)}
    assert len(first) == 400


@pytest.mark.parametrize("kind", ["resident", "dataloader"])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_replicas_slices_unite_to_the_global_batch(prepared: Path, kind: str, replicas: int) -> None:
    """Every slice of equal length, together exactly the batch of a single process, for any world size."""
    feeding = feeder(kind, split_of(prepared, "digits"), CPU, torch.float32, 0)
    batches = [batch_indices(1437, 64, 0, step) for step in (0, 21, 22)]
    whole = list(feeding.batches(iter(batches)))
    slices = [list(feeding.batches(b.chunk(replicas)[index] for b in batches)) for index in range(replicas)]
    for step, (inputs, targets) in enumerate(whole):
        parts = [mine[step] for mine in slices]
        assert {len(part[1]) for part in parts} == {64 // replicas}
        assert torch.equal(torch.cat([part[0] for part in parts]), inputs)
        assert torch.equal(torch.cat([part[1] for part in parts]), targets)


# Two ways to feed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FITTING)
def test_both_loaders_give_the_same_bits_in_the_same_order(prepared: Path, name: str, dtype: torch.dtype) -> None:
    compare_loaders(split_of(prepared, name), FITTING[name][1], dtype, workers=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTING)
def test_worker_processes_give_the_same_bits_in_the_same_order(prepared: Path, name: str) -> None:
    compare_loaders(split_of(prepared, name), FITTING[name][1], torch.float32, workers=2)


def compare_loaders(split: Split, its_task: TaskSpec, dtype: torch.dtype, workers: int) -> None:
    """Both loaders, and what proofs read, over the end of an epoch, bit for bit."""
    steps = range(len(split) // 50 + 2)
    indices = [batch_indices(len(split), 50, 0, step) for step in steps]
    resident = list(feeder("resident", split, CPU, dtype, 0).batches(iter(indices)))
    streamed = list(feeder("dataloader", split, CPU, dtype, workers).batches(iter(indices)))
    mapped = list(Mapped(split, CPU, dtype).batches(iter(indices)))
    assert len(resident) == len(streamed) == len(mapped) == len(steps)
    for (inputs, targets), (other_inputs, other_targets) in zip(resident, mapped, strict=True):
        assert (inputs.dtype, targets.dtype) == (other_inputs.dtype, other_targets.dtype)
        assert torch.equal(inputs, other_inputs)
        assert torch.equal(targets, other_targets)
    for (inputs, targets), (other_inputs, other_targets) in zip(resident, streamed, strict=True):
        assert inputs.dtype == other_inputs.dtype == (torch.int64 if its_task.network == "gpt" else dtype)
        assert inputs.shape == (50, *its_task.input_shape)
        assert torch.equal(inputs, other_inputs)
        assert torch.equal(targets, other_targets)
        assert targets.dtype == other_targets.dtype


@pytest.mark.parametrize(
    ("kind", "workers"),
    [("resident", 0), ("dataloader", 0), pytest.param("dataloader", 2, marks=pytest.mark.slow)],
)
def test_feeding_draws_nothing_from_the_generator_of_dropout(prepared: Path, kind: str, workers: int) -> None:
    """A resumed run starts its loader anew; were that to move the generator, it would part from an uncut one."""
    before = torch.get_rng_state()
    feeding = feeder(kind, split_of(prepared, "like-mnist"), CPU, torch.float32, workers)
    assert len(list(feeding.batches(batch_indices(487, 32, 0, step) for step in range(5)))) == 5
    assert torch.equal(torch.get_rng_state(), before)


def test_feeding_never_reads_ahead_of_what_is_asked(prepared: Path) -> None:
    """The stream is as long as the rest of the training: it is made lazily, without a list of millions of steps."""
    for kind in ("resident", "dataloader"):
        stream = feeder(kind, split_of(prepared, "digits"), CPU, torch.float32, 0).batches(
            batch_indices(1437, 64, 0, step) for step in range(10**12)
        )
        assert len(next(iter(stream))[1]) == 64


# What the network sees


def test_digits_are_magnified_pixel_by_pixel_into_three_channels(prepared: Path) -> None:
    split = split_of(prepared, "digits")
    enlarged = split.reader.ahead(torch.from_numpy(np.array(split.inputs[:3])))
    assert enlarged.shape == (3, 3, 32, 32)
    for image, original in zip(enlarged.numpy(), split.inputs[:3], strict=True):
        for channel in image:
            assert np.array_equal(channel, np.kron(original[0], np.ones((4, 4), np.uint8)))


@pytest.mark.parametrize("name", ["digits", "like-cifar", "like-mnist"])
def test_training_images_have_zero_mean_and_unit_deviation(prepared: Path, name: str) -> None:
    split = split_of(prepared, name)
    inputs, _ = Resident(split, CPU, torch.float64).fetch(torch.arange(len(split)))
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-5
    assert (inputs.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_the_targets_are_those_of_the_samples(prepared: Path) -> None:
    """Inputs and targets stay together through both loaders."""
    split = split_of(prepared, "vectors")
    indices = batch_indices(len(split), 64, 0, 3)
    for feeding in (Resident(split, CPU, torch.float32), Streamed(split, CPU, torch.float32, 0)):
        ((inputs, targets),) = feeding.batches(iter([indices]))
        assert np.array_equal(inputs.numpy(), split.inputs[indices.numpy()])
        assert np.array_equal(targets.numpy(), split.targets[indices.numpy()])


@pytest.mark.parametrize("kind", ["resident", "dataloader"])
def test_tokens_are_whole_numbers_and_targets_the_next_ones(prepared: Path, kind: str) -> None:
    """Never cast to the training's type: bfloat16 has no 257."""
    split = split_of(prepared, "text")
    ((inputs, targets),) = feeder(kind, split, CPU, torch.bfloat16, 0).batches(iter([torch.tensor([5, 0, 3583])]))
    assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
    assert inputs.shape == targets.shape == (3, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert np.array_equal(inputs.numpy(), split.inputs[[5, 0, 3583]])


@pytest.mark.parametrize(
    ("spec", "input_shape"),
    [
        (DIGITS, (1, 28, 28)),  # no whole factor
        (DIGITS, (3, 32, 40)),  # another one for each side
        (LIKE_CIFAR, (1, 28, 28)),  # smaller than the images, and fewer channels
        (LIKE_MNIST, (10,)),  # images for a network of vectors
        (VECTORS, (20,)),  # vectors of another length
        (VECTORS, (3, 32, 32)),  # vectors for a network of images
        (TEXT, (256,)),  # windows shorter than the network's
        (TEXT, (3, 32, 32)),  # text for a network of images
    ],
)
def test_a_dataset_that_does_not_fit_the_network_is_one_line(
    prepared: Path, spec: DatasetSpec, input_shape: tuple[int, ...]
) -> None:
    """It names the task and both shapes."""
    unfit = replace(DROPOUT, name="unfit", input_shape=input_shape)
    with pytest.raises(UserError) as error:
        Split(prepared / spec.directory_name, "train", unfit)
    assert "\n" not in str(error.value)
    for named in ("task unfit", str(spec.shape), str(input_shape)):
        assert named in str(error.value)


def test_a_truncated_dataset_is_one_line(prepared: Path, tmp_path: Path) -> None:
    for path in (prepared / LIKE_MNIST.directory_name).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "test-targets.npy").open("r+b") as stream:
        stream.truncate(stream.seek(0, 2) - 1)
    with pytest.raises(UserError, match=r"test-targets\.npy.*"):
        Split(tmp_path, "test", DROPOUT)
