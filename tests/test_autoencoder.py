"""The autoencoder of a tutorial: MNIST's pixels as vectors, each its own target, and the loss of all its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import relu

from datasets_server import small_mnist
from own_tasks import bound, spec
from relay.datasets import arrays
from relay.tasks import autoencoder_mnist

SPEC = spec("autoencoder-mnist")


def test_pixels_go_from_0_to_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = small_mnist()
    root, folder = tmp_path / "copy", tmp_path / "prepared"
    for place in (root, folder):
        place.mkdir()
    for name, content in stand_in.archives.items():
        (root / name).write_bytes(content)
    monkeypatch.setattr(autoencoder_mnist, "MNIST", replace(stand_in.source))
    task = autoencoder_mnist.Task()
    task.dataset_root = root
    task.prepare(folder)
    for split, dataset in zip(arrays.SPLITS, task.datasets(folder), strict=True):
        (pixels,) = dataset.tensors
        images = stand_in.arrays[f"{split}-inputs"]
        assert pixels.shape == (len(images), 784)
        assert pixels.dtype == torch.float32
        np.testing.assert_array_equal((pixels.numpy() * 255).round().reshape(images.shape), images)
        assert 0 == pixels.min() < pixels.max() <= 1


def test_the_network_and_its_loss_are_the_tutorials() -> None:
    its = bound(SPEC)
    model = its.model()
    parameters = list(model.parameters())
    assert [tuple(p.shape) for p in parameters[::2]] == [(128, 784), (128, 128), (128, 128), (784, 128)]
    pixels = torch.rand(6, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = pixels
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        expected = relu(expected @ weight.T + bias)
    outputs = its.outputs(model, (pixels,))
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    loss = its.loss(outputs, (pixels,))
    torch.testing.assert_close(loss, ((expected - pixels) ** 2).sum() / (6 * 784), rtol=1e-12, atol=0)
    assert isinstance(its.optimizer(parameters), torch.optim.Adam)
