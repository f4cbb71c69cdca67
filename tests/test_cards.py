"""What a look sees of tasks, of which the built-in ones have shipped cards; and what the built-in GPTs compute."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from own_tasks import bound, spec
from relay.card.look import Data, look
from relay.spec.tasks import Card, Looked, built_in
from relay.tasks._gpt import MoE
from short_tasks import at_hand, prepare_at_hand, shipped

TASKS = Path(__file__).parent / "tasks"
# Small, and without a download.
QUICK = ("lenet-digits", "resnet18-tiny")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


def card(name: str, datasets: Path) -> Card:
    return look(name, str(TASKS / f"{name}.py"), {}, Data(datasets=datasets, prepare=True)).task.card


def test_every_built_in_task_has_a_whole_card() -> None:
    for name in built_in():
        known = shipped(name)
        seen = known.task.card
        assert (known.task.name, seen.mean_difference, known.warnings) == (name, 0, ()), name
        assert seen.parameters, name
        assert seen.forward_flops, name
        assert seen.batch, name
        assert seen.cuts or seen.uncuttable, name


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_shipped_card_is_what_is_seen_today(name: str, datasets: Path, tmp_path: Path) -> None:
    """A few random samples stand for public data: but for their number, nothing on a card follows from them."""
    known = shipped(name)
    made = at_hand(known.task, known.dataset)
    if made != known.dataset:
        prepare_at_hand(known.task, made, datasets / known.dataset.directory_name)
    found = look(name, "", {}, Data(datasets=datasets, prepare=made == known.dataset))
    assert found.dataset == replace(made, version=known.dataset.version)
    replace(found, dataset=known.dataset).write(tmp_path / "card.json")
    assert Looked.read(tmp_path / "card.json") == known  # what a shipped card does not say has its default


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_other_shipped_card_is_what_is_seen_today(datasets: Path, tmp_path: Path) -> None:
    """Only this looks at the other built-in tasks."""
    for name in sorted({*built_in()} - {*QUICK}):
        test_a_shipped_card_is_what_is_seen_today(name, datasets, tmp_path)


@pytest.mark.slow
def test_a_u_net(datasets: Path) -> None:
    seen = card("unet", datasets)
    assert (seen.dropout, len(seen.batch_norm), seen.draws, seen.outside) == (("dropout",), 10, (), ())
    assert (seen.random_samples, seen.equal_shapes, seen.mean_difference) == (True, True, 0)
    assert seen.cuts


@pytest.mark.slow
def test_sequences_of_differing_lengths(datasets: Path) -> None:
    seen = card("lstm", datasets)
    assert (seen.equal_shapes, seen.sample_bytes, seen.dropout, seen.outside) == (False, None, ("lstm",), ())


# The GPT and its mixture of experts: what they compute


@pytest.fixture(autouse=True)
def _fixed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-moe-tiny"])
def test_no_token_sees_a_later_one(name: str) -> None:
    model = bound(spec(name, width=64)).model()
    tokens = torch.randint(256, (2, 64))
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    outputs, others = model(tokens), model(changed)
    assert outputs.shape == (2, 64, 256)
    assert torch.equal(outputs[:, :40], others[:, :40])
    assert (outputs[:, 40:] != others[:, 40:]).any(-1).all()


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


@pytest.mark.parametrize("chosen", [1, 2])
def test_every_token_gets_the_weighted_mean_of_its_experts(moe: MoE, chosen: int) -> None:
    moe.chosen = chosen
    inputs = torch.randn(3, 5, 8, dtype=torch.float64)
    expected = torch.stack([one_by_one(moe, token) for token in inputs.flatten(0, 1)]).view_as(inputs)
    assert torch.allclose(moe(inputs), expected, atol=1e-13)
