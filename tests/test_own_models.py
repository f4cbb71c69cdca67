"""Models as users write them train as themselves: their own forward, batches and losses, on one process and several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from own_tasks import OWN, bound, spec
from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.task.bound import BoundTask
from relay.task.data import Mapped
from relay.task.split import chosen

STEPS = 3
CELLS: list[tuple[str, str, dict[str, Any]]] = [
    ("lstm", "cpu", {}),
    ("own_loss", "ddp", {}),
    ("residual", "ddp", {"accumulation": 2}),
    ("lstm", "ddp", {"static_graph": True}),
]


def by_hand(name: str, model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss as a page on PyTorch would write it, without a word of the package's."""
    if name == "residual":
        points, labels = batch
        hidden = points + F.linear(points, model.a.weight, model.a.bias).clamp(min=0)
        return F.cross_entropy(F.linear(hidden, model.b.weight, model.b.bias), labels)
    if name == "own_loss":
        return model(batch["points"], batch["labels"]).loss
    return F.cross_entropy(model(batch["sequences"], batch["lengths"]), batch["kinds"])


def task_of(name: str) -> BoundTask:
    options = {"dropout": 0.0} if name == "lstm" else {}
    return bound(spec(str(OWN / f"{name}.py"), **options), folder=Path())


def plain(name: str, task: BoundTask) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of a few steps, and the parameters after them: torch's plainest loop over whole batches."""
    model = task.model()
    optimizer = task.own.optimizer(list(model.parameters()))
    split, losses = task.split("train"), []
    for step in range(STEPS):
        batch = Mapped(split, torch.device("cpu")).fetch(chosen(len(split), 16, task.seed, step))
        optimizer.zero_grad()
        loss = by_hand(name, model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(model.state_dict())


def trained(ranks: Ranks, name: str, strategy: str, options: dict[str, Any]) -> None:
    """Compare a strategy's training with the plain loop, on every rank."""
    task = task_of(name)
    made = strategies.load(strategy)(task, ranks, 16, options)
    replica, split, losses = made.replica, task.split("train"), []
    for step in range(STEPS):
        which = chosen(len(split), 16, task.seed, step, replica.index, replica.count)
        losses.append(float(made.train_step(Mapped(split, ranks.device).fetch(which))))
    expected, parameters = plain(name, task)
    means = [sum(each) / len(each) for each in zip(*ranks.gather(losses), strict=True)]
    assert means == pytest.approx(expected, rel=1e-12)
    for key, tensor in made.model.state_dict().items():
        torch.testing.assert_close(tensor, parameters[key], rtol=1e-12, atol=1e-13)
    assert not torch.equal(next(iter(parameters.values())), next(iter(task.model().parameters())))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strategy", "options"), CELLS, ids=["cpu", "ddp", "ddp-accumulation", "ddp-static"])
def test_a_model_trains_as_itself(name: str, strategy: str, options: dict[str, Any]) -> None:
    """The losses and parameters of plain PyTorch: a residual forward, a model's own loss, padded sequences."""
    spawned(trained, 1 if strategy == "cpu" else 2, name, strategy, options)
