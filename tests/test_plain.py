"""A plain training in one process: replicas have statistics of their own, as under DDP."""

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


def test_replicas_begin_a_step_with_the_statistics_of_the_first_one_where_they_are_alike() -> None:
    """As under DDP: of one slice, they then make the same."""
    task, (first, second) = bound(spec("resnet18-cifar10", width=4)), parts(4, 4)
    for alike in (False, True):
        plain = Plain.of(task, CPU, replicas=2)
        plain.alike = alike
        for slices in ([[first], [second]], [[second], [second]]):
            plain.step(slices, RATE)
        one, other = (own["norm1.running_mean"] for own in plain.statistics)
        assert torch.equal(one, other) is alike
