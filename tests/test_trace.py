"""Any model can be cut: what is recorded of it, why it cannot be, and what is no unit of it."""

import torch
from torch import nn

from any_models import Counted, Shared, UNet
from relay.strategies import _cut
from relay.strategies._recorder import Recorder
from relay.strategies._stages import call_seconds
from relay.task.calls import Readings
from relay.task.units import blocks

CPU = torch.device("cpu")


def test_recording_changes_neither_the_model_nor_the_random_generator() -> None:
    model, batch = UNet(), (torch.randn(2, 1, 8, 8),)
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
