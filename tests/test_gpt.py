"""The GPT and its mixture of experts: what they compute, what the catalogue says of them, and that they learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relay import networks
from relay.datasets.catalogue import dataset
from relay.datasets.prepare import prepare
from relay.networks.gpt import Attention, Block, Embed, MoE
from relay.spec.tasks import TASKS, TaskSpec, task
from relay.task.data import Resident, Split, batch_indices
from relay.task.task import Task

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fixed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def trained_by(spec: TaskSpec, precision: str = "fp64") -> Task:
    """The task of a text as a short run trains it."""
    return Task(spec, 256, 1, precision, 100, 100, kind="text")


def on_meta(spec: TaskSpec, **options: object) -> nn.Sequential:
    with torch.device("meta"):
        classes = dataset(spec.dataset).classes
        return networks.build(spec.network, spec.input_shape, classes, {**spec.network_options, **options})


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


# The catalogue


@pytest.mark.parametrize("spec", TASKS.values(), ids=TASKS)
def test_the_catalogue_knows_each_network(spec: TaskSpec) -> None:
    """Its layers with parameters, also when it is shrunken for the gate: the stages that a pipeline may have."""
    for options in ({}, spec.shrunken):
        network = on_meta(spec, **options)
        assert sum(any(True for _ in layer.parameters()) for layer in network) == spec.layers
        mixtures = [module for module in network.modules() if isinstance(module, MoE)]
        assert {mixture.experts for mixture in mixtures} == ({spec.experts} if spec.experts else set())


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt-tiny", 0.237),
        ("gpt-moe-tiny", 0.635),
        ("gpt-deep-tiny", 0.120),
        ("gpt-small", 10.9),
        ("gpt-86m", 85.6),
        ("gpt-1b", 1009),
        ("gpt-large", 4433),
    ],
)
def test_sizes_are_what_they_are_called(name: str, millions: float) -> None:
    assert parameters(on_meta(task(name))) / 1e6 == pytest.approx(millions, rel=5e-3)


@pytest.mark.parametrize("name", [name for name, spec in TASKS.items() if spec.shrunken and spec.network == "gpt"])
def test_what_is_shrunken_for_the_gate_is_split_as_the_whole_is(name: str) -> None:
    spec = task(name)
    whole, small = on_meta(spec), on_meta(spec, **spec.shrunken)
    assert [n for n, _ in small.named_parameters()] == [n for n, _ in whole.named_parameters()]
    assert parameters(small) < 20e6
    for network in (whole, small):
        heads = {m.query.out_features // m.head_width for m in network.modules() if isinstance(m, Attention)}
        assert heads == {spec.network_options["heads"]}


def test_what_tensor_parallelism_splits_is_most_of_it() -> None:
    network = on_meta(task("gpt-tiny"))
    kinds = {"column": nn.Linear, "row": nn.Linear, "embedding": nn.Embedding}
    split = parameters(network.head)  # type: ignore[arg-type]
    for module in network.modules():
        for name, how in getattr(module, "tensor_plan", {}).items():
            part = module.get_submodule(name)
            assert type(part) is kinds[how]
            split += part.weight.numel()
    assert {type(m) for m in network.modules() if hasattr(m, "tensor_plan")} == {Embed, Block}
    assert split / parameters(network) > 0.95


# What it computes


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
def test_its_initial_parameters_depend_on_the_seed_alone(name: str) -> None:
    built = trained_by(task(name))
    first, again = built.model().state_dict(), built.model().state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    expanded = "block0.moe.up" if "moe" in name else "block0.up.weight"
    narrowed = "block0.moe.down" if "moe" in name else "block0.down.weight"
    assert first[expanded].std().item() == pytest.approx(0.02, rel=0.03)
    assert first[narrowed].std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)
    assert all(first[key].eq(0).all() for key in first if "bias" in key)
    assert first["block0.norm1.weight"].eq(1).all()


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
def test_no_token_sees_a_later_one(name: str) -> None:
    model = trained_by(task(name)).model()
    tokens = torch.randint(256, (2, 64))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    outputs, others = model(tokens), model(changed)
    assert outputs.shape == (2, 64, 256)
    assert torch.equal(outputs[:, :40], others[:, :40])
    assert (outputs[:, 40:] != others[:, 40:]).any(-1).all()


def test_half_of_the_heads_is_half_of_the_attention() -> None:
    """What each of two processes computes under tensor parallelism adds up to the whole block."""
    block = Block(64, 4).double()
    inputs = torch.randn(2, 16, 64, dtype=torch.float64)
    with torch.no_grad():
        expected = block(inputs)
        normed, attended, fed = block.norm1(inputs), inputs + block.out.bias, 0
        halves = [Block(64, 4).double() for _ in range(2)]
        for index, half in enumerate(halves):
            half.load_state_dict(block.state_dict())
            for name, how in Block.tensor_plan.items():
                layer = half.get_submodule(name)
                layer.weight = nn.Parameter(layer.weight.chunk(2, 0 if how == "column" else 1)[index])
                layer.bias = nn.Parameter(layer.bias.chunk(2)[index] if how == "column" else layer.bias * 0)
            half.norm1 = nn.Identity()  # type: ignore[assignment]
            attended = attended + half.attend(normed) - normed
        for half in halves:
            fed = fed + half.down(F.gelu(half.up(block.norm2(attended))))
    assert torch.allclose(attended + fed + block.down.bias, expected, atol=1e-14)


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 64 is no multiple of the 3 heads"):
        networks.build("gpt", (64,), 256, {"width": 64, "depth": 1, "heads": 3})


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
def test_shapes_can_be_asked_for_without_data(name: str) -> None:
    """On the meta device, as a pipeline's stages ask for them."""
    built = trained_by(task(name))
    assert built.model().to("meta")(built.example(3)).shape == (3, 64, 256)


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_trains_in_fewer_bits(name: str, precision: str) -> None:
    """Nearly the gradients of float32."""
    tokens, targets = torch.randint(256, (2, 4, 64))
    gradients = []
    for each in ("fp32", precision):
        built = trained_by(task(name), each)
        model = built.model()
        built.loss(model(tokens), targets).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[1].dtype == torch.float32
    assert 0 < (gradients[0] - gradients[1]).norm() / gradients[0].norm() < 0.1


# The mixture of experts


@pytest.fixture
def moe() -> MoE:
    """Four experts of a width of 8, in float64, unlike each other."""
    made = MoE(8, 4).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def one_by_one(moe: MoE, token: torch.Tensor) -> torch.Tensor:
    """A token's output, from the definition."""
    liking = moe.router(token).softmax(0)
    best = liking.argsort(descending=True)[: moe.chosen].tolist()
    said = [F.gelu(token @ moe.up[e] + moe.up_bias[e]) @ moe.down[e] + moe.down_bias[e] for e in best]
    return sum(liking[e] * each for e, each in zip(best, said, strict=True)) / liking[best].sum()


@pytest.mark.parametrize("chosen", [1, 2, 4])
def test_every_token_gets_the_weighted_mean_of_its_experts(moe: MoE, chosen: int) -> None:
    moe.chosen = chosen
    inputs = torch.randn(3, 5, 8, dtype=torch.float64)
    expected = torch.stack([one_by_one(moe, token) for token in inputs.flatten(0, 1)]).view_as(inputs)
    assert torch.allclose(moe(inputs), expected, atol=1e-13)


def test_its_gradients_are_those_of_the_definition(moe: MoE) -> None:
    inputs = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    sources = [inputs, *moe.parameters()]
    weights = torch.randn(6, 8, dtype=torch.float64)
    mine = torch.autograd.grad((moe(inputs) * weights).sum(), sources)
    defined = torch.stack([one_by_one(moe, token) for token in inputs])
    expected = torch.autograd.grad((defined * weights).sum(), sources)
    for gradient, its in zip(mine, expected, strict=True):
        assert torch.allclose(gradient, its, atol=1e-12)


def test_no_expert_is_ever_full_and_one_may_have_nothing_to_do(moe: MoE) -> None:
    """All tokens to two experts: each is computed as if it were alone, and the others get gradients of zero."""
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[1:3, 0] = 9.0
    inputs = torch.rand(32, 8, dtype=torch.float64) + 0.1
    outputs = moe(inputs)
    assert torch.allclose(outputs, torch.cat([moe(token[None]) for token in inputs]), atol=1e-13)
    outputs.sum().backward()
    for stacked in (moe.up, moe.up_bias, moe.down, moe.down_bias):
        assert stacked.grad is not None
        assert stacked.grad[[0, 3]].eq(0).all()
        assert stacked.grad[[1, 2]].ne(0).any()


def test_a_strategy_can_take_over_the_computing(moe: MoE) -> None:
    """It gets the tokens sorted by expert and how many there are of each, and nothing else decides the result."""
    inputs, told = torch.randn(20, 8, dtype=torch.float64), []
    expected = moe(inputs)

    def compute(tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        told.append((tokens, counts))
        return moe.run_experts(tokens, counts)

    moe.compute = compute  # type: ignore[method-assign]
    assert torch.equal(moe(inputs), expected)
    ((tokens, counts),) = told
    assert (tokens.shape, counts.dtype, int(counts.sum())) == ((40, 8), torch.int64, 40)
    liked = moe.router(inputs).topk(2).indices
    assert counts.tolist() == liked.flatten().bincount(minlength=4).tolist()
    for expert, mine in enumerate(tokens.split(counts.tolist())):
        assert torch.equal(mine, inputs[(liked == expert).any(1)])


# Learning


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-tiny", pytest.param("gpt-moe-tiny", marks=pytest.mark.long)])
def test_it_learns_the_projects_text(tmp_path: Path, name: str) -> None:
    """From log 256 = 5.55 to well below what the bytes' frequencies alone would give."""
    spec = task(name)
    prepare(dataset(spec.dataset), tmp_path / "text")
    train, test = (Split(tmp_path / "text", split, spec) for split in ("train", "test"))
    built = trained_by(spec, "fp32")
    feeding, model = Resident(train, CPU, built.dtype), built.model()
    optimizer = built.optimizer(model.parameters())
    for step in range(100):
        inputs, targets = feeding.fetch(batch_indices(len(train), spec.global_batch_size, 1, step))
        optimizer.zero_grad()
        built.loss(model(inputs), targets).backward()
        optimizer.step()
    inputs, targets = Resident(test, CPU, built.dtype).fetch(torch.arange(len(test)))
    frequencies = torch.bincount(targets.flatten(), minlength=256) / targets.numel()
    by_frequency = -(frequencies * frequencies.clamp_min(1e-9).log()).sum().item()
    with torch.no_grad():
        outputs = model(inputs)
    assert built.loss(outputs, targets).item() < min(2.9, by_frequency - 0.3)
    assert built.correct(outputs, targets) / len(targets) > 0.25
