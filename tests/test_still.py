"""Any model as a proof trains it: no dropout, statistics frozen, a smooth function in the place of a kink."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from relay.task.draws import Draws
from relay.task.in_float64 import InFloat64
from relay.task.lowered import computed_in
from relay.task.smooth import Smooth
from relay.task.still import DRAWS_FIXED, DROPOUT_OFF, NORMS_FROZEN, still
from sharded import SAMPLES, Given, bound

N = 6


MODELS = {
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (N, 5, 8), [DROPOUT_OFF]),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), (N, 2, 3, 3, 3), [NORMS_FROZEN]),
    "without statistics": (lambda: nn.BatchNorm2d(2, track_running_stats=False), (N, 2, 3, 3), [NORMS_FROZEN]),
    "neither": (lambda: nn.Linear(8, 8), (N, 8), []),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_sample_is_computed_by_itself(name: str) -> None:
    build, shape, notes = MODELS[name]
    torch.manual_seed(1)
    model, inputs = build().double(), 3 + 2 * torch.randn(shape, dtype=torch.float64)
    names, parameters = list(model.state_dict()), [p.clone() for p in model.parameters()]
    done = still(model, lambda each: each(inputs))
    assert done.notes == notes
    assert not done.draws
    assert model.training
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    whole = model(inputs)
    assert torch.allclose(whole[:2], model(inputs[:2]), rtol=0, atol=1e-12)
    assert torch.allclose(whole, model.eval()(inputs), rtol=0, atol=1e-12)
    assert list(before) == names
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert all(torch.equal(one, other) for one, other in zip(parameters, model.parameters(), strict=True))


class Keeping(nn.Module):
    """Dropout by the probability of what is kept."""

    dropout_keep_prob: float

    def __init__(self) -> None:
        super().__init__()
        self.dropout_keep_prob = 0.5

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.dropout(inputs, 1 - self.dropout_keep_prob, self.training)


def test_the_probability_of_what_is_kept_is_that_of_what_is_drawn() -> None:
    model, inputs = Keeping(), torch.ones(N, 8)
    done = still(model, lambda each: each(inputs))
    assert (done.notes, done.draws) == ([DRAWS_FIXED], True)
    with Draws().fixed():
        assert torch.equal(model(inputs) == 0, (torch.arange(8) % 4 < 2).expand(N, 8))


def test_an_average_of_the_weights_is_frozen_or_where_no_checkpoint_holds_it_the_reason() -> None:
    """It is the weights at first."""

    class Averaged(nn.Linear):
        def __init__(self, *, persistent: bool = True) -> None:
            super().__init__(3, 3)
            self.register_buffer("average", self.weight.detach().clone(), persistent=persistent)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.average.lerp_(self.weight.detach(), 0.1)
            return super().forward(inputs)

    model = Averaged()
    known = {name: each.clone() for name, each in model.state_dict().items()}
    assert still(model, lambda each: each(torch.ones(2, 3))).buffers == ("average",)
    assert all(torch.equal(each, known[name]) for name, each in model.state_dict().items())
    told = still(Averaged(persistent=False), lambda each: each(torch.ones(2, 3))).unrepeatable
    assert told.startswith(
        "the forward pass changes buffers that no checkpoint holds (average), so that each job would begin with others"
    )


# The smooth twin of any model: the same function in the place of a kink, whoever calls it.


KINKS: dict[str, tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]] = {
    "relu": (nn.ReLU(), F.relu),
    "relu of a tensor": (nn.ReLU(inplace=True), lambda x: x.relu()),
    "leaky relu": (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, negative_slope=0.2)),
    "prelu": (nn.PReLU(4), lambda x: F.prelu(x, torch.full((4,), 0.25, dtype=x.dtype))),
    "hardswish": (nn.Hardswish(), F.hardswish),
    "max pooling with padding": (nn.MaxPool2d(3, 2, 1), lambda x: F.max_pool2d(x, 3, stride=2, padding=1)),
    "adaptive max pooling": (nn.AdaptiveMaxPool2d(2), lambda x: F.adaptive_max_pool2d(x, 2)),
}
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {  # and where the kink is
    "abs": (torch.abs, 0.0),
    "clamp from below": (lambda x: torch.clamp(x, min=0.5), 0.5),
    "abs by name": (lambda x: torch.abs(input=x), 0.0),
    "l1 loss": (lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"), 0.0),
}


def slopes(function: Callable[[torch.Tensor], torch.Tensor], at: float) -> tuple[float, float]:
    """The slopes a little below and above a number."""
    x = torch.tensor([at - 1e-6, at + 1e-6], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(function(x).sum(), x)
    return float(found[0]), float(found[1])


@pytest.mark.parametrize("name", KINKS)
def test_modules_and_functions_have_the_same_twin(name: str) -> None:
    module, function = KINKS[name]
    inputs = torch.randn(2, 4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rough = module.double()(inputs.clone())
    with Smooth():
        by_module, by_function = module(inputs.clone()), function(inputs.clone())
    assert torch.equal(by_module, by_function)
    assert by_module.shape == rough.shape
    assert not torch.allclose(by_module, rough)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_no_kink_any_more(name: str) -> None:
    function, kink = FUNCTIONS[name]
    below, above = slopes(function, kink)
    assert abs(below - above) > 0.5
    with Smooth():
        below, above = slopes(function, kink)
    assert abs(below - above) < 1e-4


def test_whole_and_complex_numbers_are_left_alone() -> None:
    """The backward pass of a product with zeros in it looks for the first one by `relu_` of whole numbers."""
    factors = torch.tensor([[0.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    with Smooth(), Draws().fixed():
        factors.cumprod(1).sum().backward()
        assert torch.equal(torch.tensor([-2, 3]).abs(), torch.tensor([2, 3]))
        assert torch.equal(torch.tensor([3 + 4j]).abs(), torch.tensor([5.0]))
    assert factors.grad.tolist() == [[9.0, 0.0, 0.0]]


def test_what_asks_for_16_bits_is_computed_in_float64() -> None:
    inputs = torch.full((2,), 1 + 2.0**-40, dtype=torch.float64)
    with InFloat64() as mode:
        for made in (inputs.half().float(), inputs.bfloat16(), inputs.to(torch.float16), inputs.type(torch.bfloat16)):
            assert torch.equal(made, inputs)
    assert mode.seen


class Turning(nn.Module):
    """Asks for bfloat16 by itself: `how`."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(8, 1)
        self.layer.requires_grad_(how != "not trained")
        self.last = nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs.requires_grad_(self.how == "derivative")
        mask = torch.ones(8, dtype=torch.bfloat16)[None].float() if self.how == "mask" else 1.0
        autocasts = {"off": False, "evaluation": not self.training, "mask": False}.get(self.how, True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            hidden = self.layer(inputs * mask).float()
        if self.how == "derivative":
            hidden = hidden + torch.autograd.grad(hidden.sum(), inputs, create_graph=True)[0].mean()
        if self.how == "failing" and not self.training:
            raise ValueError("too few samples")
        return self.last(hidden)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("autocast", "bf16"), ("not trained", "bf16"), ("derivative", "bf16"), ("failing", "bf16"),
     ("off", "fp32"), ("evaluation", "fp32"), ("mask", "fp32")],
)  # fmt: skip
def test_a_task_has_a_lower_precision_only_where_it_trains_in_it(how: str, expected: str) -> None:
    task = bound(Given(lambda: Turning(how), (torch.randn(SAMPLES, 8),), torch.randn(SAMPLES, 1)), "turning", "fp32")
    assert computed_in(task, torch.device("cpu")) == expected
    of_evaluations = computed_in(task, torch.device("cpu"), evaluated=True)
    assert of_evaluations == ("bf16" if how == "evaluation" else expected)


def test_complex_numbers_are_computed_in_as_many_bits() -> None:
    """A Fourier neural operator writes its modes into zeros of torch.cfloat."""
    modes = torch.full((2,), 1 + 2.0**-40, dtype=torch.complex128)
    with InFloat64() as mode:
        written = torch.zeros(2, dtype=torch.cfloat)
        written[:] = modes
        for made in (written, modes.to(torch.complex64), modes.cfloat(), modes * torch.tensor([1 + 0j, 1 + 0j])):
            assert torch.equal(made, modes)
    assert mode.seen


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_is_computed_again_in_a_backward_pass_has_the_same_twin(use_reentrant: bool) -> None:
    """Modes of torch's are left while `backward` is handed over. The kernels of several stay in their order."""
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    inputs = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = []
    for again in (False, True):
        layers.zero_grad()
        with InFloat64(), Smooth():
            outputs = checkpoint(layers, inputs, use_reentrant=use_reentrant) if again else layers(inputs)
            outputs.sum().backward()
        found.append([parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None])
    assert [len(each) for each in found] == [4, 4]
    assert all(torch.allclose(*pair, rtol=1e-12, atol=1e-12) for pair in zip(*found, strict=True))
