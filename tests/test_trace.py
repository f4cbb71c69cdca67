"""Any model can be cut: what is recorded of it, where it may be cut, and that the parts compute what the model does."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from any_models import GPT, Counted, Found, ReadFirst, Recurrent, Routed, Shared, UNet
from relay.strategies import _cut
from relay.strategies._recorder import Recorder
from relay.strategies._stage import Plan, Stage, merged
from relay.strategies._stages import call_seconds
from relay.task.calls import Readings
from relay.task.units import blocks

CPU = torch.device("cpu")


class Whole:
    """What a plan asks of a task: a model without data, called with its whole batch."""

    autocast, compiled, dtype = None, False, torch.float64

    def blocks(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        return blocks(model)

    def arguments(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ((), batch) if isinstance(batch, dict) else (batch, {})

    def arithmetic(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, enabled=False)


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(11, (5, 6)), torch.tensor([6, 3, 5, 2, 6])


MODELS: dict[str, tuple[Any, Any, int]] = {  # how it is made, its batch, the most stages
    "unet": (UNet, lambda: (torch.randn(2, 1, 8, 8),), 4),
    "gpt": (GPT, tokens, 4),
    "experts": (Routed, lambda: {"x": torch.randn(6, 4)}, 3),
    "lstm": (Recurrent, lambda: (torch.randn(5, 2, 3),), 3),
    "functions": (lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), lambda: (torch.randn(2, 3),), 2),
    "a weight that is read before its layer is called": (ReadFirst, lambda: (torch.randn(2, 3),), 2),
}


def made(name: str) -> tuple[nn.Module, Any]:
    """A model and a batch in float64, always the same."""
    torch.manual_seed(0)
    model, batch = MODELS[name][0]().double(), MODELS[name][1]()
    return model, pytree.tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, batch)


def called(model: nn.Module, batch: Any) -> list[Any]:
    return leaves(model(**batch) if isinstance(batch, dict) else model(*batch))


def leaves(outputs: Any) -> list[Any]:
    found = list(vars(outputs).values()) if isinstance(outputs, Found) else pytree.tree_leaves(outputs)
    return [each for each in found if isinstance(each, torch.Tensor)]


def stages_of(model: nn.Module, batch: Any, count: int) -> list[Stage]:
    """The model's stages, cut where calls of equal cost say."""
    plan = Plan(Whole(), model, CPU, batch)  # type: ignore[arg-type]
    plan.cut(_cut.balanced(plan.calls, [1.0] * len(plan.calls.nodes), count))
    return [Stage(plan, index, CPU) for index in range(count)]


def passed(stages: list[Stage], batch: Any) -> Any:
    """What the stages compute for a batch, one after the other, each with copies of what the one before has sent."""
    found: Any = ()
    for stage in stages:
        stage.relay_batch = batch
        found = stage(*found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [(name, most) for name, (_, _, most) in MODELS.items()])
def test_stages_compute_what_the_model_does(name: str, count: int) -> None:
    """Outputs, gradients, statistics and the names of the state, in training; outputs in evaluation; other shapes."""
    plain, batch = made(name)
    stages = stages_of(made(name)[0], batch, count)
    whole = merged(stages)
    assert set(whole.state_dict()) == set(plain.state_dict())
    for _ in range(2):
        torch.manual_seed(1)
        expected = called(plain, batch)
        torch.manual_seed(1)
        found = leaves(passed(stages, batch))
        assert all(torch.allclose(*pair, rtol=0, atol=1e-13) for pair in zip(found, expected, strict=True))
        for outputs in (expected, found):
            sum(each.square().sum() for each in outputs if each.requires_grad).backward()
    given = dict(whole.named_parameters())
    for parameter, tensor in plain.named_parameters():
        assert torch.allclose(given[parameter].grad, tensor.grad, rtol=0, atol=1e-12), parameter
    for tensor_name, tensor in plain.state_dict().items():
        assert torch.equal(whole.state_dict()[tensor_name], tensor), tensor_name
    for module in (plain, *stages):
        module.eval()
    halved = pytree.tree_map(lambda leaf: leaf[:1] if name != "lstm" else leaf[:3], batch)
    with torch.no_grad():
        for each in (batch, halved):
            pairs = zip(leaves(passed(stages, each)), called(plain, each), strict=True)
            assert all(torch.allclose(*pair, rtol=0, atol=1e-13) for pair in pairs)


def test_recording_changes_neither_the_model_nor_the_random_generator() -> None:
    model, batch = made("unet")
    before, generator = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    calls = _cut.Calls(Recorder(model, CPU).record(batch, {}, training=True))
    seconds = call_seconds(calls, model, CPU, None)
    assert [*seconds] == [node.name for node in calls.nodes]
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert not any(isinstance(each, torch._subclasses.FakeTensor) for each in model.state_dict().values())


def test_why_a_model_cannot_be_cut_is_one_line() -> None:
    for said, model in {
        "all trained parameters are used in one piece: the model itself": nn.Linear(3, 3),
        "layer share the parameter layer.bias, and all others lie between them": Shared(),
        "the model: Tensor.item: what comes next depends on values": Counted(),
    }.items():
        found = _cut.cuttable(model, (torch.randn(2, 3),), {}, [])
        assert found.startswith(said)
        assert "\n" not in found


class Called(nn.Module):
    """Calls a module with a weight that it computes, and keeps what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.base = nn.Linear(4, 9), nn.Linear(3, 3)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = {"weight": self.made(x[:, [0, 1, 2, 0]]).mean(0).view(3, 3), "bias": self.base.bias}
        self.kept = [torch.func.functional_call(self.base, given, (x,))]
        return self.kept[0]


def test_a_module_that_is_called_with_other_parameters_is_no_unit() -> None:
    """FSDP would put its own in their place."""
    model, x = Called(), torch.zeros(2, 3)
    model(x)
    found = Readings.of(model, (x,), {})
    assert found is not None
    assert "base" not in dict(blocks(model, readings=found))
    assert "base" in dict(blocks(model))


def test_lists_of_parameters_are_no_units() -> None:
    """They are never called: FSDP would gather them for nobody, where no forward pass could be seen."""
    held = [torch.ones(64)]
    model = nn.ModuleDict({"list": nn.ParameterList(held), "dict": nn.ParameterDict({"a": held[0].clone()})})
    model["layer"] = nn.Linear(8, 8)
    assert [name for name, _ in blocks(model)] == ["layer"]
