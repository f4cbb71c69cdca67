"""How matrices are split over tensor-parallel ranks, in models of any form, and what is refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from any_models import Residual, encoder
from relay.spec.tasks import TaskSpec
from relay.strategies._sharded import replicated
from relay.strategies._tensor_plan import TensorPlan, plan_of
from relay.strategies.fsdp import shard_units
from relay.strategies.tensor_parallel import split
from relay.task.calls import Readings
from relay.task.load import task_class
from relay.task.units import blocks


def of(model: nn.Module, *arguments: Any, ranks: int | None = 2, **keys: Any) -> TensorPlan:
    """The plan by one call of the model."""
    return plan_of(model, arguments, {}, ranks, **keys)


def styles(model: nn.Module, *arguments: Any, ranks: int | None = 2, **keys: Any) -> dict[str, str]:
    """The plan's styles."""
    return dict(of(model, *arguments, ranks=ranks, **keys).styles)


def built_in(name: str) -> nn.Module:
    """The model of one of the package's own tasks."""
    return task_class(TaskSpec(name=name, global_batch_size=1, learning_rate=1.0))().model()


IMAGES, TEXT = torch.zeros(2, 3, 32, 32), torch.zeros(2, 8, dtype=torch.long)


def test_matrices_in_a_row_are_paired() -> None:
    assert styles(built_in("lenet-digits"), IMAGES) == {"fc1": "column", "fc2": "row", "fc3": "row, whole"}


def test_a_width_that_ranks_do_not_divide_is_put_together_again() -> None:
    """LeNet's 120 columns over seven ranks: as a pair, the next matrix would see shards of two widths."""
    found = styles(built_in("lenet-digits"), IMAGES, ranks=7)
    assert found == {"fc1": "row, whole", "fc2": "column", "fc3": "row"}


def test_what_is_dropped_is_whole() -> None:
    found = styles(built_in("utsa-mnist"), torch.zeros(2, 1, 28, 28))
    assert found == {"fc1": "row, whole", "fc2": "row, whole"}
    layers = ("layers.0.linear1", "layers.0.linear2", "layers.1.linear1", "layers.1.linear2")
    dropped, kept = (styles(encoder(dropout), torch.zeros(2, 4, 16)) for dropout in (0.1, 0.0))
    assert dropped == dict(zip(layers, ("column, whole", "row, whole") * 2, strict=True))
    assert kept == dict(zip(layers, ("column", "row") * 2, strict=True))


def test_what_is_added_to_whole_numbers_is_whole() -> None:
    """outer(x + relu(inner(x))): a network of the children in a row would be another one."""
    assert styles(Residual(8), torch.zeros(2, 8)) == {"inner": "column, whole", "outer": "column, whole"}


class Slopes(nn.Sequential):
    """Takes gradients where it trains."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = torch.autograd.grad(super().forward(x).sum(), self[0].weight, create_graph=True)[0]
        return super().forward(x)


def test_a_model_is_looked_at_with_gradients() -> None:
    model = Slopes(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    assert plan_of(model, (torch.zeros(2, 8),), {}).share == 0.5


class Tied(nn.Module):
    """Its table of tokens is looked up at the start, and multiplied at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(hidden + self.down(F.relu(self.up(hidden))))


def test_tied_weights_stay_whole_and_together() -> None:
    assert styles(Tied(), TEXT) == {"place": "embedding", "up": "column", "down": "row"}
    units = [name for name, _ in blocks(Tied(), readings=Readings.of(Tied(), (TEXT,), {}))]
    assert not {"token", "head"} & set(units), "no unit but the model has both"


def test_a_matrix_that_is_not_trained_is_no_share_of_the_training() -> None:
    """Of its gradients and of the optimiser's state, each process would have nearly all."""
    model = nn.Sequential(nn.Linear(8, 64).requires_grad_(False), nn.LayerNorm(64), nn.Linear(64, 1))
    assert plan_of(model, (torch.zeros(2, 8),), {}, 2).share == 0


class Between(nn.Module):
    """Two matrices with something between them."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.between, self.second = nn.Linear(4, 8), between, nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.second(self.between(self.first(inputs)))


def by_hand(inputs: torch.Tensor) -> torch.Tensor:
    """GELU as GPT-2's code writes it."""
    return 0.5 * inputs * (1.0 + torch.tanh(0.8 * (inputs + 0.044715 * torch.pow(inputs, 3.0))))


@pytest.mark.parametrize("between", [nn.GELU(), by_hand, lambda x: x.relu_(), lambda x: x.float().clamp(0, 6)])
def test_functions_of_each_number_may_stand_between(between: Any) -> None:
    assert styles(Between(between), torch.zeros(2, 4)) == {"first": "column", "second": "row"}


def overwritten(inputs: torch.Tensor) -> torch.Tensor:
    inputs[:, :2] = 0
    return inputs


def less_their_mean(inputs: torch.Tensor) -> torch.Tensor:
    return inputs - inputs.mean(-1, keepdim=True)


@pytest.mark.parametrize(
    "between", [nn.Dropout(0.1), lambda x: x.softmax(-1), lambda x: x * torch.ones(8), less_their_mean, overwritten]
)
def test_what_needs_all_numbers_may_not(between: Any) -> None:
    assert styles(Between(between), torch.zeros(2, 4)) == {"first": "column, whole", "second": "row, whole"}


def test_a_matrix_that_is_not_called_is_left_alone() -> None:
    class Read(Between):
        def forward(self, inputs: torch.Tensor) -> Any:
            return F.linear(self.second(self.first(inputs).relu()), self.first.weight)

    assert styles(Read(None), torch.zeros(2, 4)) == {"second": "row, whole"}
    normed = Between(nn.ReLU())
    nn.utils.parametrizations.weight_norm(normed.first)  # its weight is computed in each call
    assert styles(normed, torch.zeros(2, 4)) == {"second": "row, whole"}


def test_a_hook_of_a_parameter_is_refused_where_a_shard_takes_its_place() -> None:
    model: Any = Residual(8)
    model.inner.weight.register_hook(lambda gradient: gradient / 2)
    nothing: Any = None
    for shard, given in ((shard_units, (model, [])), (split, (nothing, model)), (replicated, (model,))):
        with pytest.raises(RuntimeError, match=r"^inner\.weight has a hook for its gradient"):
            shard(*given, nothing)
