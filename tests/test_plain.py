"""A plain training in one process: replicas have statistics of their own, as under DDP."""

import pytest
import torch

from own_tasks import bound, spec
from relay.equivalence.plain import Plain
from relay.task.batches import Batch

CPU = torch.device("cpu")
RATE = 0.05


def parts(*sizes: int) -> list[Batch]:
    """Parts of these sizes of a batch of random images and classes, always the same."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64, generator=generator)
    classes = torch.randint(0, 10, (8,), generator=generator)
    return list(zip(images.split(sizes), classes.split(sizes), strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_after_a_step_that_began_with_those_of_the_first_replica(momentum: float | None) -> None:
    """As under DDP. Without a momentum, BatchNorm keeps the mean of all batches."""
    task, slices = bound(spec("resnet18-cifar10", width=4)), [parts(2, 2, 4)[:2], parts(4, 2, 2)[1:]]
    each, shared = Plain.of(task, CPU, replicas=2), Plain.of(task, CPU, replicas=2)
    shared.alike = True
    for plain in (each, shared):
        for module in plain.model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = momentum
        plain.model.get_submodule("norm1").unused = torch.nn.BatchNorm2d(2, momentum=momentum)  # no batch reaches it
        buffers = [*plain.model.named_buffers()]
        plain.statistics = [
            own | {name: each.clone() for name, each in buffers if "unused" in name} for own in plain.statistics
        ]
        for _ in range(3):
            plain.step(slices, RATE)
    own, as_under_ddp = each.candidates[1]
    for name, buffer in shared.statistics[1].items():
        assert torch.allclose(as_under_ddp[name], buffer, rtol=0, atol=1e-12), name
    assert not torch.allclose(own["norm1.running_mean"], as_under_ddp["norm1.running_mean"], atol=1e-6)
