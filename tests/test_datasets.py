"""Embedded and generated datasets: what they hold, and that it never changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datasets_requests import DIGITS, FILES, SYNTHETIC, make_digits, make_synthetic, names
from relay.base.errors import UserError
from relay.datasets import arrays, generate, text
from relay.datasets.manifest import MANIFEST
from relay.datasets.prepare import prepare
from relay.tasks._images import STATISTICS

# Embedded and generated data


def test_digits_are_all_of_scikit_learns_images_split_in_proportion(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    made = prepare(DIGITS, make_digits, tmp_path / "digits")
    assert names(tmp_path) == {"digits"}
    assert names(tmp_path / "digits") == {*FILES, MANIFEST, STATISTICS}
    train, test = arrays.load(tmp_path / "digits", "train"), arrays.load(tmp_path / "digits", "test")
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
    # The split is part of what results are compared by: it must not move.
    assert made.files["test-targets.npy"].sha256 == "8b327f48c12dbefada47aa336ebcb04b5784c159c5350dbabf0e9ee71ad1cc40"


def test_digits_that_are_not_the_known_ones_are_refused() -> None:
    images, targets = np.zeros((3, 1, 8, 8), np.uint8), np.zeros(3, np.int64)
    with pytest.raises(UserError, match=r"digits: corrupted: .* expected [0-9a-f]{64}"):
        generate.check_digits(images, targets)


def test_synthetic_images_repeat_byte_for_byte_and_can_be_learnt(tmp_path: Path) -> None:
    first, second = (prepare(SYNTHETIC, make_synthetic, tmp_path / name) for name in "ab")
    assert first == second
    assert first.files["train-inputs.npy"].sha256 == "f7ddd3d4df89f65e2183b52bdad37cab31da7b74a1743bd1de28041ccadf0b59"
    inputs, targets = arrays.load(tmp_path / "a", "train")
    test_inputs, test_targets = arrays.load(tmp_path / "a", "test")
    assert inputs.shape == (2500, 3, 16, 20)
    assert np.bincount(targets).tolist() == [500] * 5
    assert len(np.unique(inputs, axis=0)) == 2500
    means = np.stack([inputs[targets == label].mean(axis=0) for label in range(5)]).reshape(5, -1)
    flat = test_inputs.reshape(300, -1)
    nearest = ((flat[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == test_targets).mean() > 0.95


def test_text_is_cut_into_windows_and_their_next_bytes() -> None:
    length = 64
    made = text.windows(length)
    train, test = ((made[f"{split}-inputs"], made[f"{split}-targets"]) for split in arrays.SPLITS)
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
