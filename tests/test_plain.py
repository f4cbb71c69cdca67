"""A plain training in one process: parts change nothing but rounding, and replicas have statistics of their own."""

import pytest
import torch

from own_tasks import bound, spec
from relay.equivalence.plain import Plain
from relay.task.batches import Batch
from relay.task.bound import BoundTask

CPU = torch.device("cpu")
RATE = 0.05


def task_of(name: str) -> BoundTask:
    """A task in float64, with a small network."""
    return bound(spec(name, **({"width": 4} if name.startswith("resnet") else {})))


def batch_of(count: int) -> Batch:
    """Random images and classes, always the same."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(count, 3, 32, 32, dtype=torch.float64, generator=generator)
    return images, torch.randint(0, 10, (count,), generator=generator)


def cut(batch: Batch, *sizes: int) -> list[Batch]:
    """The batch in parts of these sizes."""
    return list(zip(*(tensor.split(sizes) for tensor in batch), strict=True))


def distance(one: Plain, other: Plain) -> float:
    """The largest difference between parameters."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max(float((mine - yours).detach().abs().max()) for mine, yours in pairs)


def test_parts_of_any_size_are_the_whole_batch_but_for_rounding() -> None:
    task, batch = task_of("lenet-cifar10"), batch_of(12)
    whole, parts = Plain.of(task, CPU), Plain.of(task, CPU)
    start = Plain.of(task, CPU)
    for _ in range(3):
        losses = [plain.step([slices], RATE) for plain, slices in ((whole, [batch]), (parts, cut(batch, 1, 4, 7)))]
        assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-13)
    assert 0 < distance(whole, parts) < 1e-14
    assert distance(whole, start) > 1e-3


def test_each_replica_normalises_by_its_own_slice_and_keeps_its_own_statistics() -> None:
    """Against two models by hand, each with a slice, and the mean of their gradients."""
    task, (first, second) = task_of("resnet18-cifar10"), cut(batch_of(8), 4, 4)
    plain = Plain.of(task, CPU, replicas=2)
    models = [task.model(), task.model()]
    optimizers = [task.optimizer(model.parameters()) for model in models]
    for _ in range(2):
        for model, optimizer, (inputs, targets) in zip(models, optimizers, (first, second), strict=True):
            optimizer.zero_grad()
            task.loss(model(inputs), (inputs, targets)).backward()
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([p.grad for p in parameters]).mean(0)
            for parameter in parameters:
                parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = RATE
            optimizer.step()
        plain.step([[first], [second]], RATE)
    for mine, yours in zip(plain.model.parameters(), models[0].parameters(), strict=True):
        assert torch.allclose(mine, yours, rtol=0, atol=1e-12)
    for statistics, model in zip(plain.statistics, models, strict=True):
        for name, buffer in model.named_buffers():
            assert torch.allclose(statistics[name], buffer, rtol=0, atol=1e-12), name
    assert not torch.equal(*(statistics["norm1.running_mean"] for statistics in plain.statistics))
    model = models[0].eval()
    assert torch.allclose(plain.predict(first), model(first[0]), rtol=0, atol=1e-12)
    assert plain.model.training


def test_replicas_begin_a_step_with_the_statistics_of_the_first_one_where_they_are_alike() -> None:
    """As under DDP: of one slice, they then make the same."""
    task, (first, second) = task_of("resnet18-cifar10"), cut(batch_of(8), 4, 4)
    for alike in (False, True):
        plain = Plain.of(task, CPU, replicas=2)
        plain.alike = alike
        for slices in ([[first], [second]], [[second], [second]]):
            plain.step(slices, RATE)
        one, other = (own["norm1.running_mean"] for own in plain.statistics)
        assert torch.equal(one, other) is alike
