"""Evaluation on the test set: every sample once, and without a trace in the training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chain_runs import DROPOUT, LIKE_MNIST, VECTORS
from checkpointed import Training
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.tasks import task
from relay.task.data import Resident, Split
from relay.task.task import Task
from relay.training.evaluation import Evaluation

pytest_plugins = ["chain_runs", "checkpointed"]


@pytest.mark.parametrize("batch", [64, 77, 101, 128])
def test_no_sample_of_the_test_set_counts_twice(ranks: Ranks, prepared: Path, batch: int) -> None:
    """Batches that do not divide it, one larger than all of it: always the plain mean over its 101 samples."""
    its_task = Task(DROPOUT, LIKE_MNIST.classes, 5, "fp64", 1, 1)
    strategy = strategies.load("cpu")(its_task, ranks, batch, {})
    split = Split(prepared / LIKE_MNIST.directory_name, "test", DROPOUT)
    assert len(split) == 101
    loss, accuracy = Evaluation(split, its_task, strategy, batch).measure()
    inputs, targets = Resident(split, ranks.device, torch.float64).fetch(torch.arange(101))
    outputs = strategy.model.eval()(inputs)
    assert accuracy == (outputs.argmax(1) == targets).double().mean().item()
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(outputs, targets).item(), rel=1e-12)


def test_evaluation_leaves_the_training_as_it_was(ranks: Ranks, prepared: Path) -> None:
    """It draws nothing for dropout, and dropout is at work again afterwards."""
    plain, watched = Training(ranks, prepared), Training(ranks, prepared)
    test = Split(prepared / LIKE_MNIST.directory_name, "test", DROPOUT)
    evaluation = Evaluation(test, watched.strategy.task, watched.strategy, watched.batch)
    torch.manual_seed(5)
    expected = plain.train(4)
    torch.manual_seed(5)
    losses = []
    for _ in range(4):
        losses += watched.train(1)
        assert evaluation.measure() == evaluation.measure()
    assert losses == expected


def test_regression_is_evaluated_without_accuracy(ranks: Ranks, prepared: Path) -> None:
    spec = task("linear-random10")
    trained = Training(ranks, prepared, spec, VECTORS)
    split = Split(prepared / VECTORS.directory_name, "test", spec)
    loss, accuracy = Evaluation(split, trained.strategy.task, trained.strategy, 32).measure()
    inputs, targets = Resident(split, ranks.device, torch.float32).fetch(torch.arange(len(split)))
    assert accuracy is None
    assert loss == pytest.approx(torch.nn.functional.mse_loss(trained.strategy.model(inputs), targets).item(), rel=1e-5)
