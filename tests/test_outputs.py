"""Outputs whose samples another dimension counts, or none: seen on the card, joined, cut and compared along it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from own_tasks import bound
from preloaded import spawned
from relay import strategies
from relay.card.look import Data, look
from relay.card.words import in_words
from relay.equivalence.figures import leaves_of
from relay.process.ranks import Ranks
from relay.spec.tasks import Looked, TaskSpec
from relay.task.data import Resident
from relay.training.evaluation import Evaluation
from test_any_model import HEAD
from trial_runs import judged

pytestmark = pytest.mark.slow

# The state (1, N, 16) of an LSTM, in training (N, 16); and a table that has nothing to do with samples.
RECURRENT = (
    HEAD
    + """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 5, 3), torch.arange(n) % 3) for n in (64, 21)]

    def model(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.before, self.lstm, self.head = nn.Linear(3, 3), nn.LSTM(3, 16, batch_first=True), nn.Linear(16, 3)
                self.register_buffer("book", torch.arange(14.0).view(7, 2))

            def forward(self, x):
                states, (last, _) = self.lstm(self.before(x))
                return self.head(states[:, -1]), last[0] if self.training else last, self.book

        return Recurrent()

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs[0], batch[1]) + outputs[1].square().mean()

    def metrics(self, outputs, batch):
        return {"size": outputs[1].square().mean(), "table": outputs[2].mean()}

    def final_metrics(self, means):
        return {**means, "root": means["size"] ** 0.5}
"""
)


# A tensor for each sample, as many as the batch has.
LISTED = (
    HEAD
    + """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 3), torch.arange(n) % 3) for n in (64, 21)]

    def model(self):
        class Listed(nn.Module):
            def forward(self, x):
                return list(x)

        return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), Listed())

    def loss(self, outputs, batch):
        return F.cross_entropy(torch.stack(outputs), batch[1])
"""
)


def test_what_a_model_gives_is_kept_while_training_changes_it() -> None:
    temperature = torch.nn.Parameter(torch.ones(()))
    (kept,) = leaves_of({"temperature": temperature}, {})
    temperature.data.add_(1)
    assert kept == 1


def looked(folder: Path, text: str = RECURRENT) -> Looked:
    """What a look has seen of the task."""
    file = folder / "recurrent.py"
    file.write_text(text)
    return look("recurrent", str(file), {}, Data(datasets=folder))


def test_the_dimension_that_counts_samples_is_seen_and_told(tmp_path: Path) -> None:
    found = looked(tmp_path)
    assert found.task.card.outputs_along == {"outputs[1]": 1, "outputs[2]": None}
    assert found.task.card.training_outputs_along == {"outputs[2]": None}
    assert "outputs[1]: dimension 1 counts the samples." in in_words(found)
    assert "outputs[2]: no dimension counts the samples." in in_words(found)


def test_a_right_strategy_is_proven(tmp_path: Path) -> None:
    verdict = judged(looked(tmp_path).task, tmp_path, "pipeline")
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True


def test_parts_of_a_batch_are_joined_as_they_are_computed_in_training(ranks: Ranks, tmp_path: Path) -> None:
    """Where it evaluates, samples are counted elsewhere."""
    task = bound(looked(tmp_path).task, folder=Path())
    made = strategies.load("model_parallel_in_process")(task, ranks, 16, {"micro_batches": 2})
    assert made.forward(task.example(16))[1].shape == (16, 16)


def test_beside_a_tensor_for_each_sample_one_of_all_is_compared(tmp_path: Path) -> None:
    text = LISTED.replace("return list(x)", "return x, list(x)").replace("torch.stack(outputs)", "outputs[0]")
    assert looked(tmp_path, text).task.card.outputs_along == {"outputs": None, "outputs[0]": 0}


def test_whole_numbers_that_count_within_a_batch_are_not_compared(tmp_path: Path) -> None:
    """As each row's sample, and where each sample begins; classes are."""
    outputs = "x, torch.arange(len(x)), torch.arange(len(x) + 1), x.argmax(1)"
    text = LISTED.replace("return list(x)", f"return {outputs}").replace("torch.stack(outputs)", "outputs[0]")
    found = looked(tmp_path, text)
    assert found.task.card.outputs_within == ("outputs[1]", "outputs[2]")
    assert "outputs[1]: whole numbers that count within a batch. They are not compared in proofs." in in_words(found)
    assert judged(found.task, tmp_path, "ddp")["problems"] == []


def test_tensors_of_one_sample_each_are_not_compared(tmp_path: Path) -> None:
    found = looked(tmp_path, LISTED)
    assert found.task.card.outputs_along == found.task.card.training_outputs_along == {"outputs": None}
    assert "outputs: no dimension counts the samples." in in_words(found)
    verdict = judged(found.task, tmp_path, "ddp")
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True


def evaluated(ranks: Ranks, its: TaskSpec, strategy: str, batch: int, options: dict[str, Any]) -> None:
    """Loss and metrics are those of the whole test set at once."""
    task = bound(its, folder=Path())
    made, test = strategies.load(strategy)(task, ranks, batch, options), task.split("test")
    loss, metrics = Evaluation(Resident(test, ranks.device), made, batch).measure()
    whole = test.ready(test.dataset.tensors, ranks.device)
    with torch.no_grad():
        outputs = task.outputs(task.model().eval(), whole)
    assert loss == pytest.approx(float(task.loss(outputs, whole)), rel=1e-12)
    assert metrics == pytest.approx(task.final_metrics(task.metrics(outputs, whole)), rel=1e-12)


@pytest.mark.parametrize("text", [RECURRENT, LISTED], ids=["a state", "a tensor for each sample"])
def test_the_last_batch_may_be_short(text: str, tmp_path: Path) -> None:
    """21 samples in batches of 8: five in the last one."""
    spawned(evaluated, 2, looked(tmp_path, text).task, "pipeline", 8, {"micro_batches": 4})
