"""Which steps of a run are drawn for its spot checks, and what becomes of them when jobs are killed. Without torch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from relay.run_folder.sealed import seal
from relay.run_folder.spots import FOLDER, Seen, Spot, Spots, draw, go_on, states_folder
from relay.spec.spot_checks import SpotChecks

DEFAULT = SpotChecks()


def keep(work: Path, *steps: int) -> None:
    """States as a trainer leaves them."""
    for step in steps:
        place = states_folder(work) / f"step-{step}"
        place.mkdir(parents=True)
        (place / "state").write_text(str(step))
        seal(place, step, 1)


def test_every_step_after_the_first_is_drawn_as_often() -> None:
    drawn = Counter(draw(SpotChecks(hops=0, end=False), 0, 20, 20).spots[0].first for _ in range(4_000))
    assert sorted(drawn) == list(range(1, 19))
    assert min(drawn.values()) > 4_000 / 18 / 2


def test_the_last_steps_are_always_checked() -> None:
    spots = [spot for spot in draw(DEFAULT, 0, 1_000, 1_000).spots if spot.kind == "end"]
    assert spots == [Spot("end", 998, 1_000)]


def test_a_chain_of_jobs_has_a_spot_across_one_of_its_hops() -> None:
    hops = [spot for _ in range(200) for spot in draw(DEFAULT, 0, 30, 100).spots if spot.kind == "hop"]
    assert {(spot.first, spot.last) for spot in hops} == {(29, 31), (59, 61), (89, 91)}
    assert len(hops) == 200


def test_a_run_that_goes_on_from_anothers_step_is_checked_in_its_own_steps() -> None:
    for _ in range(100):
        assert min(spot.first for spot in draw(DEFAULT, 60, 80, 100).spots) >= 60


def test_a_killed_job_keeps_the_spots_that_it_can_still_meet(tmp_path: Path) -> None:
    keep(tmp_path, 7)
    spots = Spots([Spot("random step", 7, 9), Spot("hop", 29, 31), Spot("end", 58, 60)])
    assert go_on(spots, DEFAULT, tmp_path, 8, 60).spots == spots.spots
    assert go_on(spots, DEFAULT, tmp_path, 5, 60).spots == spots.spots


def test_a_random_step_whose_state_was_never_complete_is_drawn_anew(tmp_path: Path) -> None:
    (states_folder(tmp_path) / "partial-7").mkdir(parents=True)
    keep(tmp_path, 9)
    spots = Spots([Spot("random step", 7, 9)])
    for _ in range(50):
        (spot,) = go_on(spots, DEFAULT, tmp_path, 12, 60).spots
        assert spot.kind == "random step"
        assert spot.first >= 12
    assert list(states_folder(tmp_path).iterdir()) == []


def test_of_the_last_steps_those_that_are_left_are_checked(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (spot,) = go_on(Spots([Spot("end", 58, 60)]), DEFAULT, tmp_path, 59, 60).spots
    assert spot == Spot("end", 59, 60)


def test_what_can_no_longer_be_met_is_told(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    found = go_on(Spots([Spot("hop", 29, 31)]), DEFAULT, tmp_path, 40, 60)
    assert found.spots == []
    assert found.missed[0].startswith("hop:")


def test_what_was_seen_is_read_as_it_was_written(tmp_path: Path) -> None:
    spots = Spots([Spot("end", 8, 10)], {9: Seen([[4], [2, 2]], None)}, [(0, True), (1, True)], [["fc1"], ["fc1"]])
    spots.write(tmp_path)
    assert Spots.read(tmp_path) == spots


@pytest.mark.parametrize("text", ["", '{"spots": 3}'])
def test_a_damaged_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "spots.json").write_text(text)
    assert Spots.read(tmp_path) is None
