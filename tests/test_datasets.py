"""Embedded and generated datasets: what they hold, and that it never changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from datasets_requests import DIGITS, SYNTHETIC, names, one_line
from relay.base.errors import UserError
from relay.datasets import generate
from relay.datasets.arrays import FILES
from relay.datasets.catalogue import dataset
from relay.datasets.kinds import text
from relay.datasets.manifest import MANIFEST, load_split
from relay.datasets.prepare import prepare
from relay.spec.dataset import DatasetSpec

RANDOM = DatasetSpec(
    name="random-10", version="1", kind="vectors", shape=(10,), classes=None, train_count=1000, test_count=200
)


# Embedded and generated data


def test_digits_are_all_of_scikit_learns_images_split_in_proportion(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    made = prepare(DIGITS, tmp_path / "digits")
    assert names(tmp_path) == {"digits"}
    assert names(tmp_path / "digits") == {*FILES, MANIFEST}
    train, test = load_split(tmp_path / "digits", "train"), load_split(tmp_path / "digits", "test")
    assert train[0].shape == (1437, 1, 8, 8)
    assert test[0].shape == (360, 1, 8, 8)
    assert (train[0].min(), train[0].max()) == (0, 255)
    bunch = load_digits()
    theirs = sorted(
        (image.round().astype(int).tobytes(), label) for image, label in zip(bunch.images, bunch.target, strict=True)
    )
    ours = sorted(
        (np.rint(image[0] / 255 * 16).astype(int).tobytes(), label)
        for inputs, targets in (train, test)
        for image, label in zip(inputs, targets, strict=True)
    )
    assert ours == theirs
    shares = np.bincount(test[1]) / np.bincount(bunch.target)
    assert np.ptp(shares) < 0.01
    assert made.source.startswith("scikit-learn")
    # The split is part of what results are compared by: it must not move.
    assert made.files["test-targets.npy"].sha256 == "8b327f48c12dbefada47aa336ebcb04b5784c159c5350dbabf0e9ee71ad1cc40"


def test_digits_that_are_not_the_known_ones_are_refused() -> None:
    images, targets = np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64)
    with pytest.raises(UserError, match=r"digits: corrupted: .* expected [0-9a-f]{64}"):
        generate.check_digits(images, targets)


def test_synthetic_images_repeat_byte_for_byte_and_can_be_learnt(tmp_path: Path) -> None:
    first, second = prepare(SYNTHETIC, tmp_path / "a"), prepare(SYNTHETIC, tmp_path / "b")
    assert first == second
    assert first.files["train-inputs.npy"].sha256 == "f7ddd3d4df89f65e2183b52bdad37cab31da7b74a1743bd1de28041ccadf0b59"
    inputs, targets = load_split(tmp_path / "a", "train")
    test_inputs, test_targets = load_split(tmp_path / "a", "test")
    assert inputs.shape == (2500, 3, 16, 20)
    assert np.bincount(targets).tolist() == [500] * 5
    assert len(np.unique(inputs, axis=0)) == 2500
    means = np.stack([inputs[targets == label].mean(axis=0) for label in range(5)]).reshape(5, -1)
    flat = test_inputs.reshape(300, -1)
    nearest = ((flat[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == test_targets).mean() > 0.95


def test_synthetic_images_do_not_depend_on_how_they_are_cut_into_pieces(tmp_path, monkeypatch) -> None:
    whole = prepare(SYNTHETIC, tmp_path / "a")
    monkeypatch.setattr(generate, "_CHUNK_BYTES", 70_000)
    assert prepare(SYNTHETIC, tmp_path / "b") == whole


def test_random_regression_is_standard_normal(tmp_path: Path) -> None:
    made = prepare(RANDOM, tmp_path / "random-10")
    inputs, targets = load_split(tmp_path / "random-10", "train")
    test_inputs, _ = load_split(tmp_path / "random-10", "test")
    assert (inputs.shape, targets.shape, test_inputs.shape) == ((1000, 10), (1000, 1), (200, 10))
    assert inputs.dtype == targets.dtype == np.float32
    assert abs(inputs.mean()) < 0.05
    assert abs(inputs.std() - 1) < 0.05
    assert abs(np.corrcoef(inputs[:, 0], targets[:, 0])[0, 1]) < 0.1
    assert not np.isin(test_inputs, inputs).any()
    assert made.mean is made.std is made.classes is None


@pytest.mark.parametrize(("name", "length"), [("relay-text", 64), ("relay-text-256", 256)])
def test_text_is_cut_into_windows_and_their_next_bytes(tmp_path: Path, name: str, length: int) -> None:
    made = prepare(dataset(name), tmp_path / "text")
    assert (made.shape, made.classes, made.mean, made.std) == ((length,), 256, None, None)
    assert made.source == "relay_text.txt"
    train, test = load_split(tmp_path / "text", "train"), load_split(tmp_path / "text", "test")
    assert [array.dtype for array in (*train, *test)] == [np.uint8, np.int64] * 2
    assert len(test[0]) * 7 == len(train[0])
    # Put together again, every eighth window from the test split, it is the text.
    windows = np.concatenate([train[0].reshape(-1, 7, length), test[0].reshape(-1, 1, length)], axis=1).reshape(-1)
    following = np.concatenate([train[1].reshape(-1, 7, length), test[1].reshape(-1, 1, length)], axis=1).reshape(-1)
    content = text.TEXT.read_bytes()
    assert windows.tobytes() == content[:-1]
    assert following.astype(np.uint8).tobytes() == content[1:]


def test_the_text_is_the_frozen_one(tmp_path: Path) -> None:
    """What results are compared by must not move; and it is text, of which a model can learn something."""
    content = text.TEXT.read_bytes()
    assert content.decode().startswith("# Torch Relay\n")
    assert 150_000 < len(content) < 400_000
    changed = tmp_path / "relay_text.txt"
    changed.write_bytes(content.replace(b"Relay", b"relay", 1))
    with pytest.raises(UserError, match=r"relay_text\.txt: changed: SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
        text.windows(64, changed)
    with pytest.raises(UserError, match=r"missing\.txt: cannot be read: No such file"):
        text.windows(64, tmp_path / "missing.txt")


def test_windows_longer_than_the_text_allows_are_refused() -> None:
    assert text.windows(32_768)["test-inputs"].shape == (1, 32_768)
    with pytest.raises(UserError, match=r"shape: \[32769\] is longer .* allowed is up to 32768"):
        text.windows(32_769)


# What is asked for


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "imagenet"}, "dataset: 'imagenet' is unknown; allowed are cifar10, digits, mnist"),
        ({"shape": (3, 0, 8)}, r"shape: \[3, 0, 8\] must be 3 positive"),
        ({"shape": (8,)}, r"shape: \[8\] must be 3 positive"),
        ({"classes": 1}, "classes: 1 must be"),
        ({"classes": None}, "classes: None must be"),
        ({"train_count": 0}, "train_count: 0 must be a whole number of at least 1"),
        ({"test_count": 1.5}, r"test_count: 1\.5 must be"),
        ({"kind": "sounds"}, "kind: 'sounds' is unknown; allowed are images, text, vectors"),
        ({"name": "random-10"}, "kind: 'images' does not fit 'random-10'; allowed is vectors"),
        ({"name": "relay-text"}, "kind: 'images' does not fit 'relay-text'; allowed is text"),
        ({"kind": "text", "shape": (8, 8), "classes": 256}, r"shape: \[8, 8\] must be 1 .*\(length\)"),
        ({"kind": "text", "shape": (8,), "classes": 255}, "classes: 255 must be 256"),
        ({"kind": "text", "shape": (8,), "classes": 256}, "kind: 'text' does not fit 'synthetic'; allowed is images"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_line(tmp_path: Path, changes, said) -> None:
    with pytest.raises(UserError, match=said) as error:
        prepare(dataclasses.replace(SYNTHETIC, **changes), tmp_path / "out")
    one_line(error)
    assert names(tmp_path) == set()
