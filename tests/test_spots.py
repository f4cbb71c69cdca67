"""Which steps of a run are drawn for its spot checks, and what becomes of them when jobs are killed. Without torch."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from chain_runs import Bench, Chain
from relay.base.files import write_json
from relay.chain.files import all_described
from relay.chain.sealed import manifest, seal
from relay.run_folder.spots import FOLDER, Spot, Spots, draw, go_on, states_folder
from relay.spec.recipe import SpotChecks
from relay.training.summary import kept_losses
from spot_checked import kept, states

DEFAULT = SpotChecks()


def keep(work: Path, *steps: int) -> None:
    """States as a trainer leaves them."""
    for step in steps:
        place = states_folder(work) / f"step-{step}"
        place.mkdir(parents=True)
        (place / "state").write_text(str(step))
        seal(place, step, all_described(place), {"world_size": 1})


def test_every_step_after_the_first_is_drawn_as_often() -> None:
    drawn = Counter(draw(SpotChecks(hops=0, end=False), 0, 20, 20).spots[0].first for _ in range(4_000))
    assert sorted(drawn) == list(range(1, 19))
    assert min(drawn.values()) > 4_000 / 18 / 2


def test_a_chain_of_jobs_has_a_spot_across_one_of_its_hops() -> None:
    hops = [spot for _ in range(200) for spot in draw(DEFAULT, 0, 30, 100).spots if spot.kind == "hop"]
    assert {(spot.first, spot.last) for spot in hops} == {(29, 31), (59, 61), (89, 91)}
    assert len(hops) == 200


def test_a_run_that_goes_on_from_anothers_step_is_checked_in_its_own_steps() -> None:
    for _ in range(100):
        assert min(spot.first for spot in draw(DEFAULT, 60, 80, 100).spots) >= 60


def test_a_random_step_whose_state_was_never_complete_is_drawn_anew(tmp_path: Path) -> None:
    (states_folder(tmp_path) / ".partial-7").mkdir(parents=True)
    keep(tmp_path, 9)
    spots = Spots([Spot("random step", 7, 9)])
    for _ in range(50):
        (spot,) = go_on(spots, DEFAULT, tmp_path, 12, 60).spots
        assert spot.kind == "random step"
        assert spot.first >= 12
    assert list(states_folder(tmp_path).iterdir()) == []


def test_what_can_no_longer_be_met_is_told_and_the_last_steps_that_are_left_are_checked(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    found = go_on(Spots([Spot("hop", 29, 31), Spot("end", 58, 60)]), DEFAULT, tmp_path, 59, 60)
    assert found.spots == [Spot("end", 59, 60)]
    assert found.missed[0].startswith("hop:")


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    for text in ("", '{"spots": 3}'):
        (tmp_path / FOLDER / "spots.json").write_text(text)
        assert Spots.read(tmp_path) is None


# The states that real trainings keep for their spot checks: over jobs that end, are killed, or start anew

STEPS = 12
SHORT = {"total_steps": STEPS, "evaluate_every_steps": 5}


def planned(chain: Chain, *spots: Spot) -> Chain:
    """The same chain, begun by a job that was killed before its first step, with these spots drawn."""
    told = {"generation": "first", "code": "", "strategy_source": "", "adopted_from": None, "attempts": []}
    write_json(chain.work / "chain.json", told)
    Spots(list(spots)).write(chain.work)
    return chain


@pytest.mark.slow
def test_a_state_across_a_hop_is_kept_by_two_jobs(bench: Bench) -> None:
    chain = planned(bench.chain("run", **SHORT), Spot("hop", 5, 7), Spot("end", 10, 12))
    assert chain.forked(0, 6).status == 0
    assert states(chain.work) == [5]
    assert chain.forked(6, 12).status == 0
    assert states(chain.work) == [5, 7, 10, 12]
    assert sorted(kept(chain).seen) == [7, 11, 12]  # what was seen of step 6 went with the job
    told = manifest(states_folder(chain.work) / "step-5")
    assert told["chain"]["generation"] == "first"  # of the chain whose file lies beside the rolling checkpoints


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_spots(bench: Bench) -> None:
    mark = f"Path({str(bench.folder / 'died')!r})"
    kill = f"self.steps < 8 or {mark}.exists() or ({mark}.touch(), os.kill(os.getpid(), 9))"
    dies = bench.strategy("dies_once", kill)
    chain = bench.chain("run", **SHORT, **dies)
    planned(chain, Spot("random step", 5, 7), Spot("end", 10, 12))
    assert chain.forked().status == 75
    assert states(chain.work) == [5, 7]
    assert chain.forked(attempt=2).status == 0
    assert kept(chain).spots == [Spot("random step", 5, 7), Spot("end", 10, 12)]
    assert states(chain.work) == [5, 7, 10, 12]


@pytest.mark.slow
def test_keeping_states_changes_nothing_of_the_training(bench: Bench) -> None:
    with_spots = bench.chain("with", **SHORT).train(forked=True)
    without = bench.chain("without", **SHORT)
    without.run = replace(without.run, spot_checks=SpotChecks(random_steps=0, hops=0, end=False))
    without.run.write(without.declared / "run.json")
    assert kept_losses(with_spots.work) == kept_losses(without.train(forked=True).work)
