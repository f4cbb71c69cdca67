"""Evaluation on the test set: every sample once, and without a trace in the training."""

from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import TensorDataset

import relay
from own_tasks import OWN, bound, spec
from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.task.bound import BoundTask
from relay.task.data import Resident, Streamed
from relay.task.learning_rate import set_learning_rate
from relay.task.split import chosen
from relay.training.evaluation import Evaluation

COUNT = 21


Returned = make_dataclass("Returned", ["loss", "logits"])  # a model's own loss beside its outputs


class Head(nn.Module):
    """One linear layer, whose output comes in the form that is asked for."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.linear, self.drop = form, nn.Linear(6, 3), nn.Dropout(0.5)

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> Any:
        noise = torch.randn_like(points) if self.form == "noisy" else 0.0
        logits = self.linear(self.drop(points + noise))
        loss = F.cross_entropy(logits, labels)
        forms = {"tensor": logits, "dict": {"logits": logits}, "distribution": Categorical(logits=logits)}
        return (forms | {"dataclass": Returned(loss, logits), "noisy": logits})[self.form]


class Formed(relay.Task):
    """Points in three classes."""

    learning_rate = 1.0
    form = "tensor"

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        points = torch.randn(60 + COUNT, 6, generator=torch.Generator().manual_seed(1))
        stored = TensorDataset(points, points[:, :3].argmax(1))
        return TensorDataset(*stored[:60]), TensorDataset(*stored[60:])

    def model(self) -> nn.Module:
        return Head(self.form)

    def inputs(self, batch: Any) -> Any:
        return batch

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        if self.form == "dataclass":
            return super().loss(outputs, batch)
        return F.cross_entropy(self._logits(outputs), batch[1])

    def _logits(self, outputs: Any) -> torch.Tensor:
        return outputs["logits"] if self.form == "dict" else getattr(outputs, "logits", outputs)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, self.learning_rate)

    def metrics(self, outputs: Any, batch: Any) -> dict[str, Any]:
        return {"accuracy": (self._logits(outputs).argmax(-1) == batch[1]).double().mean()}


def formed(form: str) -> BoundTask:
    task = bound(spec(str(OWN / "dropout.py")), folder=Path())
    task.own = Formed()
    task.own.form = form
    return task


def evaluated(ranks: Ranks, strategy: str, form: str, batch: int) -> None:
    """Loss and accuracy are those of all samples, on every rank."""
    task = formed(form)
    made = strategies.load(strategy)(task, ranks, batch, {})
    test = task.split("test")
    loss, metrics = Evaluation(Resident(test, ranks.device), made, batch).measure()
    points, labels = test.dataset.tensors
    logits = made.model.eval().linear(points.double())
    assert loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-12)
    accuracy = (logits.argmax(1) == labels).double().mean().item()
    assert metrics == {"accuracy": pytest.approx(accuracy, rel=1e-12)}


@pytest.mark.parametrize(("batch", "form"), [(8, "dataclass"), (20, "dataclass"), (64, "dict"), (8, "distribution")])
def test_no_sample_of_the_test_set_counts_twice(ranks: Ranks, batch: int, form: str) -> None:
    """Batches that divide it or not, one larger than all of it; a model's own loss is that of its whole batch."""
    evaluated(ranks, "cpu", form, batch)


@pytest.mark.slow
def test_replicas_count_every_sample_once_together() -> None:
    """The last batch of 16 has five samples: all in the first rank's slice, the second one has none."""
    spawned(evaluated, 2, "ddp", "distribution", 16)


@pytest.mark.parametrize("form", ["dict", "noisy"])
def test_evaluation_leaves_the_training_as_it_was(form: str, ranks: Ranks) -> None:
    """It draws nothing for dropout, which is at work again afterwards. What a model draws all the same stays apart."""
    courses = []
    for evaluates in (False, True):
        task = formed(form)
        made = strategies.load("cpu")(task, ranks, 16, {})
        evaluation = Evaluation(Streamed(task.split("test"), ranks.device, 0), made, 16)
        train = Resident(task.split("train"), ranks.device)
        torch.manual_seed(5)
        courses.append([])
        for step in range(4):
            courses[-1].append(made.train_step(train.fetch(chosen(60, 16, 5, step))).item())
            assert not evaluates or evaluation.measure() == evaluation.measure()
    assert courses[0] == courses[1]


def test_parameter_groups_keep_the_ratio_of_their_learning_rates() -> None:
    """The schedule moves all of them; what a comparison replaces, such as momentum, holds for each."""

    class Grouped(Formed):
        def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            weight, bias = parameters
            groups = [{"params": [weight]}, {"params": [bias], "lr": 10 * self.learning_rate}]
            return torch.optim.SGD(groups, self.learning_rate, weight_decay=0.3)

    task = formed("tensor")
    task.own, replaced = Grouped(), {"momentum": 0.7, "weight_decay": 0.0}
    task.spec = replace(task.spec, optimizer_options=replaced, schedule={"kind": "cosine"})
    made = task.optimizer(task.model().parameters())
    assert [group["momentum"] for group in made.param_groups] == [0.7, 0.7]
    assert [group["weight_decay"] for group in made.param_groups] == [0.0, 0.0]
    for step in range(4):
        set_learning_rate(made, task.learning_rate(step))
        one, other = (group["lr"] for group in made.param_groups)
        assert (one, other) == (pytest.approx(task.learning_rate(step)), pytest.approx(10 * one))
    assert task.learning_rate(3) < task.learning_rate(0)
