"""What a look sees of tasks: the built-in ones' cards are those of today's code, and further models' are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from relay.card.look import Data, look
from relay.spec.tasks import Card, Looked, built_in
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
