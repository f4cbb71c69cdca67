"""Two folders of results compared, as before and after a maintenance."""

import csv
from pathlib import Path

import pytest

from relay.comparison.between import Changed, between
from results_tree import Tree, status

STEADY = [1000.0, 1002.0, 998.0]


def times(factor: float, speeds: list[float] = STEADY) -> list[float]:
    return [factor * speed for speed in speeds]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Tree, Tree]:
    return Tree(tmp_path / "before"), Tree(tmp_path / "after")


def found(two: tuple[Tree, Tree]) -> dict[str, Changed]:
    for tree in two:
        tree.write_plan()
    changes = between(two[0].root, two[1].root)
    return {str((each.after or each.before).row["loader"]): each for each in changes}  # type: ignore[union-attr]


def test_settings_are_matched_whatever_their_names_and_their_place(two: tuple[Tree, Tree]) -> None:
    """Ids differ where the site or the software does. Other settings are not compared."""
    before, after = two
    before.setting("cpu", STEADY, name="cpu-a", site="a")
    before.setting("cpu", STEADY, name="gone", threads=2, loader="dataloader")
    after.setting("cpu", times(0.5), name="cpu-b", site="b", software="other")
    changes = found(two)
    assert (changes["resident"].change, changes["dataloader"].change) == ("slower", "not compared")
    assert changes["resident"].ratio.value == pytest.approx(0.5)


def test_a_change_is_called_beyond_the_margin_and_the_noise_alone(two: tuple[Tree, Tree]) -> None:
    noisy = [1000.0, 1300.0, 1150.0]
    for tree, factor in zip(two, (1.0, 1.3), strict=True):
        tree.setting("cpu", times(factor), loader="resident")
        tree.setting("cpu", times(factor, noisy), loader="dataloader")
    changes = found(two)
    assert changes["resident"].change == "faster"
    assert changes["dataloader"].change == "unclear"
    same = Tree(two[1].root.parents[1] / "same")
    same.setting("cpu", times(1.005), loader="resident")
    assert found((two[0], same))["resident"].change == "the same"


def test_the_repeats_of_one_night_are_no_two_days(two: tuple[Tree, Tree]) -> None:
    """Otherwise their small spread would be that between days."""
    for day, tree, factor in ((1, two[0], 1.0), (5, two[1], 1.1)):
        starts = [f"2026-01-0{day}T23:30:00+00:00", f"2026-01-0{day + 1}T00:30:00+00:00"] * 2
        tree.record(tree.setting("cpu", times(factor, [*STEADY, 1001.0])), started_at=starts)
    assert found(two)["resident"].change == "unclear"


def test_the_command_prints_a_line_for_each_setting_and_writes_a_table(two, tmp_path: Path, capsys) -> None:
    two[0].setting("cpu", STEADY)
    two[1].setting("cpu", times(0.7))
    for tree in two:
        tree.write_plan()
    folders = [str(tree.root) for tree in two]
    assert status("compare-results", *folders, "--csv", str(tmp_path / "changes.csv")) == 0
    out = capsys.readouterr().out
    assert "0.700 (0.697 to 0.703)" in out
    assert out.splitlines()[-1] == "1 slower"
    with (tmp_path / "changes.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["change"], float(row["ratio"])) == ("slower", pytest.approx(0.7))


@pytest.mark.parametrize(("factors", "change"), [((1.0, 1.06, 0.97), "unclear"), ((1.5, 1.56, 1.47), "faster")])
def test_several_days_are_the_unit(two: tuple[Tree, Tree], factors: tuple[float, ...], change: str) -> None:
    """Repeats of one day are alike; days are further apart than a change of 2 % would be."""
    for tree, by_day in zip(two, ((1.0, 0.95, 1.04), factors), strict=True):
        ids = tree.setting("cpu", [1000.0 * day * near for day in by_day for near in (1.0, 1.001, 0.999)])
        tree.record(ids, started_at=[f"2026-01-0{day}T0{hour}:00:00+00:00" for day in (1, 2, 3) for hour in (1, 2, 3)])
    assert found(two)["resident"].change == change
