"""The autoencoder of a tutorial: MNIST's pixels as vectors, each its own target, and the loss of all its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import relu

from datasets_server import small_mnist
from plans import only
from relay.datasets.catalogue import dataset
from relay.datasets.kinds.vectors import read_pixels
from relay.datasets.manifest import load_split
from relay.datasets.prepare import prepare
from relay.equivalence.trial_task import TrialTask
from relay.equivalence.trials import SMOOTH
from relay.spec.tasks import task
from relay.task.task import Task

SPEC = task("autoencoder-mnist")


def test_pixels_go_from_0_to_1_and_are_their_own_targets(tmp_path: Path) -> None:
    stand_in = small_mnist()
    source = replace(stand_in.source, read=read_pixels)
    small = replace(dataset(SPEC.dataset), train_count=50, test_count=20)
    for name, content in stand_in.archives.items():
        (tmp_path / name).write_bytes(content)
    prepare(small, tmp_path / "pixels", root=tmp_path, source=source)
    for split in ("train", "test"):
        inputs, targets = load_split(tmp_path / "pixels", split)
        images = stand_in.arrays[f"{split}-inputs"]
        assert inputs.shape == targets.shape == (len(images), 784)
        assert inputs.dtype == targets.dtype == np.float32
        np.testing.assert_array_equal((inputs * 255).round().reshape(images.shape), images)
        np.testing.assert_array_equal(targets, inputs)
        assert 0 == inputs.min() < inputs.max() <= 1


def test_the_network_and_its_loss_are_the_tutorials() -> None:
    its = Task(SPEC, classes=None, seed=5, precision="fp64", steps_per_epoch=10, total_steps=20, kind="vectors")
    model = its.model()
    parameters = list(model.parameters())
    assert [tuple(p.shape) for p in parameters[::2]] == [(128, 784), (128, 128), (128, 128), (784, 128)]
    pixels = torch.rand(6, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = pixels
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        expected = relu(expected @ weight.T + bias)
    outputs = model(pixels)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    loss = its.loss(outputs, pixels.float())
    torch.testing.assert_close(loss, ((expected - pixels.float()) ** 2).sum() / (6 * 784), rtol=1e-12, atol=0)
    assert isinstance(its.optimizer(parameters), torch.optim.Adam)


def test_the_gate_sees_whole_targets_and_whose_they_are() -> None:
    """A sample's number rides beside its 784 targets, and is none of them."""
    run = only({"strategy": "cpu"}, task=SPEC.name)
    its = TrialTask.in_trial(run, SMOOTH, scale=1.0)
    targets, outputs = torch.rand(4, 784, dtype=torch.float64), torch.rand(4, 784, dtype=torch.float64)
    loss = its.loss(outputs, its.with_ids(targets, torch.tensor([7, 3, 59_999, 0])))
    torch.testing.assert_close(loss, ((outputs - targets) ** 2).mean(), rtol=1e-12, atol=0)
    assert its.seen == [7, 3, 59_999, 0]
