"""The autoencoder of a tutorial: MNIST's pixels as vectors, each its own target, and the loss of all its numbers."""

from __future__ import annotations

import torch
from torch.nn.functional import relu

from own_tasks import bound, spec

SPEC = spec("autoencoder-mnist")


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
