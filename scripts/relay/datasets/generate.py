"""Datasets that need no network: scikit-learn's digits, and generated ones.

Random bits come straight from PCG64, whose stream numpy guarantees for ever; the methods of its `Generator`
may change between versions. Only the standard normals use one, as no fixed form of them exists.
"""

import hashlib
from pathlib import Path

import numpy as np

from relay.base.errors import UserError
from relay.datasets.arrays import SPLITS, Arrays, split_by

DIGITS_SHA256 = "0b7e9c3202d7bcd255d6a19a238d3743bf5e320ba74812a6679958a017c55382"
SEED = 0
PATTERN, TRAIN, TEST = 0, 1, 2  # streams of random bits
_GRID = 4
_CHUNK_BYTES = 1 << 24


def digits(test_count: int) -> Arrays:
    """scikit-learn's 1,797 images, uint8 (N, 1, 8, 8), in a fixed and stratified split.

    Raises UserError if the installed copy is not the known one.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Values are 0 … 16; whole-number arithmetic rounds alike everywhere.
    images = ((bunch.images.astype(np.int64) * 255 + 8) // 16).astype(np.uint8)[:, np.newaxis]
    targets = bunch.target.astype(np.int64)
    digest = hashlib.sha256(images.tobytes() + targets.astype("<i8").tobytes()).hexdigest()
    if digest != DIGITS_SHA256:
        raise UserError(
            f"digits: corrupted: scikit-learn's copy has SHA-256 {digest}, expected {DIGITS_SHA256}; "
            "install scikit-learn again"
        )
    return split_by(stratified(targets, test_count), images, targets)


def stratified(targets: np.ndarray, test_count: int) -> np.ndarray:
    """Which samples are for testing, bool (N,): `test_count`, each class in proportion (largest remainder)."""
    classes, sizes = np.unique(targets, return_counts=True)
    exact = sizes * test_count / len(targets)
    quota = np.floor(exact).astype(np.int64)
    quota[np.argsort(quota - exact, kind="stable")[: test_count - quota.sum()]] += 1
    order = _permutation(len(targets), random_bits(TRAIN))
    chosen = np.zeros(len(targets), dtype=bool)
    for label, count in zip(classes, quota, strict=True):
        chosen[order[targets[order] == label][:count]] = True
    return chosen


def write_synthetic(
    directory: Path, shape: tuple[int, int, int], classes: int, train_count: int, test_count: int
) -> None:
    """Images uint8 (N, *shape) that can be learnt: a coarse pattern for each class, under noise twice as strong.

    Written in pieces, so that a set larger than memory can be made. Values stay within 0 … 255 without
    clipping.
    """
    channels, height, width = shape
    row_bytes = channels * height * width
    chunk_rows = max(1, _CHUNK_BYTES // row_bytes)
    coarse = _bytes(random_bits(PATTERN, *shape), classes, channels * _GRID * _GRID)
    # A grid of patches, as poolings and convolutions would average a pattern of single pixels away.
    grid = coarse.reshape(classes, channels, _GRID, _GRID)
    rows, columns = (np.arange(size) * _GRID // size for size in (height, width))
    pattern = 64 + (grid[:, :, rows][:, :, :, columns] >> 2)  # 64 … 127
    for split, stream, count in (("train", TRAIN, train_count), ("test", TEST, test_count)):
        bits = random_bits(stream, *shape)
        targets = (_permutation(count, bits) % classes).astype(np.int64)
        np.save(directory / f"{split}-targets.npy", targets)
        path = directory / f"{split}-inputs.npy"
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
        with path.open("wb") as file:  # not mapped: a full disk would end this process by SIGBUS
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, count, chunk_rows):
                chunk = targets[start : start + chunk_rows]
                noise = _bytes(bits, len(chunk), row_bytes) >> 1  # 0 … 127
                file.write((pattern[chunk] + noise.reshape(len(chunk), *shape)).tobytes())


def random_regression(features: int, train_count: int, test_count: int) -> Arrays:
    """Inputs float32 (N, features) and targets float32 (N, 1): independent standard normals. Nothing can be learnt."""
    arrays: Arrays = {}
    for split, stream, count in zip(SPLITS, (TRAIN, TEST), (train_count, test_count), strict=True):
        generator = np.random.Generator(random_bits(stream, features))
        arrays[f"{split}-inputs"] = generator.standard_normal((count, features)).astype(np.float32)
        arrays[f"{split}-targets"] = generator.standard_normal((count, 1)).astype(np.float32)
    return arrays


def random_bits(*key: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence((SEED, *key)))


def _permutation(count: int, bits: np.random.PCG64) -> np.ndarray:
    return np.argsort(bits.random_raw(count), kind="stable")


def _bytes(bits: np.random.PCG64, rows: int, row_bytes: int) -> np.ndarray:
    """Random uint8 (rows, row_bytes). Each row begins with a fresh word: the pieces' size does not show."""
    words = -(-row_bytes // 8)
    raw = bits.random_raw(rows * words).astype("<u8", copy=False)
    return raw.view(np.uint8).reshape(rows, words * 8)[:, :row_bytes]
