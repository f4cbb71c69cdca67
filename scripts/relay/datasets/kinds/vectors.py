"""Vectors: float32 features with one float32 target, for regression."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relay.datasets.arrays import Arrays, save
from relay.datasets.generate import TEST, TRAIN, random_bits
from relay.datasets.kind import Kind, Known
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


def _random(features: int, train_count: int, test_count: int) -> Known:
    spec = DatasetSpec(
        name=f"random-{features}",
        version="1",
        kind="vectors",
        shape=(features,),
        classes=None,
        train_count=train_count,
        test_count=test_count,
    )
    return Known(spec=spec, origin=random_regression, family="random-")


class Vectors(Kind):
    """Samples of shape (features,) and targets of shape (1,)."""

    dimensions = ("features",)
    inputs, targets = "float32", "float32"
    # The random regression data of document 001 (10 features) and of document 004 (20 features).
    datasets = (_random(10, 1000, 200), _random(20, 2048, 512))
