"""Vectors: float32 features with float32 targets, for regression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from relay.datasets.arrays import SPLITS, Arrays, save
from relay.datasets.generate import TEST, TRAIN, random_bits
from relay.datasets.kind import Kind, Known, Maker
from relay.datasets.mnist import MNIST, read_mnist
from relay.datasets.sources import Source
from relay.spec.dataset import DatasetSpec


def random_regression(spec: DatasetSpec, directory: Path) -> str:
    """Inputs float32 (N, features) and targets float32 (N, 1): independent standard normals. Nothing can be learnt."""
    arrays: Arrays = {}
    for split, stream, count in (("train", TRAIN, spec.train_count), ("test", TEST, spec.test_count)):
        generator = np.random.Generator(random_bits(stream, *spec.shape))
        arrays[f"{split}-inputs"] = generator.standard_normal((count, *spec.shape)).astype(np.float32)
        arrays[f"{split}-targets"] = generator.standard_normal((count, 1)).astype(np.float32)
    save(arrays, directory)
    return "generated"


def read_pixels(members: Mapping[str, bytes]) -> Arrays:
    """MNIST's images as vectors float32 (N, 784) from 0 to 1, each its own target. Raises UserError."""
    arrays: Arrays = {}
    read = read_mnist(members)
    for split in SPLITS:
        images = read[f"{split}-inputs"]
        pixels = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        arrays[f"{split}-inputs"] = arrays[f"{split}-targets"] = pixels
    return arrays


def _vectors(
    name: str, features: int, train_count: int, test_count: int, origin: Source | Maker, family: str | None = None
) -> Known:
    spec = DatasetSpec(
        name=name,
        version="1",
        kind="vectors",
        shape=(features,),
        classes=None,
        train_count=train_count,
        test_count=test_count,
    )
    return Known(spec=spec, origin=origin, family=family)


class Vectors(Kind):
    """Samples of shape (features,), and targets of shape (1,), or of their own."""

    dimensions = ("features",)
    inputs, targets = "float32", "float32"
    datasets = (
        # The random regression data of document 001 (10 features) and of document 004 (20 features).
        _vectors("random-10", 10, 1000, 200, random_regression, "random-"),
        _vectors("random-20", 20, 2048, 512, random_regression, "random-"),
        # What the tutorial that document 002 leads to gives to its autoencoder.
        _vectors("mnist-pixels", 28 * 28, 60_000, 10_000, replace(MNIST, read=read_pixels)),
    )
