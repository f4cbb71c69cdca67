"""Where others may have slowed down the runs, the answer is never called certain; it says why in one sentence."""

from pathlib import Path
from typing import Any

import pytest

from relay.comparison import words
from relay.process import system
from results_tree import Tree

ALONE = {"virtual": False, "cpu_quota": None, "shares_nodes": False, "other_cpus": 0.04}
STEADY = [1000.0, 1002.0, 998.0]
REASONS: list[tuple[dict[str, Any], str]] = [
    ({"virtual": True}, "the machine is virtual, and others may compute on its processors"),
    ({"cpu_quota": 1.5}, "a quota limits the CPU time to that of 1.5 CPUs, as in a shared container"),
    ({"shares_nodes": True}, "other jobs may compute on the same nodes"),
    ({"other_cpus": 0.83}, "other programs used up to 0.83 CPUs meanwhile"),
]


@pytest.fixture
def pair(tree: Tree) -> tuple[list[str], list[str]]:
    """The runs of a setting, and those of one that is half as fast."""
    fast = tree.setting("cpu", STEADY, summary=ALONE)
    return fast, tree.setting("cpu", [500.0, 501.0, 499.0], loader="dataloader", summary=ALONE)


@pytest.mark.parametrize(("recorded", "reason"), REASONS)
def test_a_clear_measurement_beside_others_is_not_certain(
    tree: Tree, pair: tuple[list[str], list[str]], recorded: dict[str, Any], reason: str
) -> None:
    tree.record(pair[1], **{name: [value] * 3 for name, value in recorded.items()})
    found = tree.answer()
    assert found.certainty == "likely"
    assert words.told("certainty", found) == (
        "The measurements are clear: even at the edges of the 95 % intervals the recommendation stays the same. "
        f"But it is not certain, because {reason}. To be certain, measure on a node of your own."
    )


def test_a_tie_beside_others_says_so_in_short(tree: Tree) -> None:
    for threads in (1, 2):
        tree.setting("cpu", STEADY, threads=threads, summary=ALONE | {"virtual": True, "cpu_quota": 1.5})
    assert words.told("in_short", tree.answer()) == (
        "It is a tie with cpu (1 proc, 2 threads, resident), within 3 %. But it is not certain, because the machine is "
        "virtual, and others may compute on its processors (and one more reason)."
    )


def test_more_repeats_are_advised_nowhere_where_others_disturb_them(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 2100.0, 1500.0], summary=ALONE | {"virtual": True})
    tree.setting("cpu", [300.0, 250.0, 320.0], threads=2, cpus_per_task=2, summary=ALONE)
    tree.setting("cpu", [400.0, 1200.0, 500.0], threads=2, summary=ALONE)
    found = tree.answer()
    assert (found.certainty, found.repeats_to_tell) == ("unclear", None)
    assert any(each.repeats_to_tell for each in found.unclear)
    assert "More repeats will hardly help. The fastest repeat of" in words.told("certainty", found)


def test_uneven_days_and_devices_are_told_by_their_repeats(tree: Tree) -> None:
    """Most repeats of both settings are of the first day and device."""
    for threads, first in ((1, 19), (2, 12)):
        ids = tree.setting("cpu", [1000.0 * threads] * 20, threads=threads)
        days = [f"2026-01-0{2 if repeat < first else 5}T03:04:05+00:00" for repeat in range(20)]
        tree.record(ids, started_at=days, device_name=["X" if repeat < first else "Y" for repeat in range(20)])
    said = words.told("certainty", tree.answer())
    for place in ("Y", "2026-01-05"):
        assert f"8 of 20 repeats of cpu (1 proc, 2 threads, resident) ran on {place}, and 1 of cpu (" in said


def groups(tmp_path: Path, line: str, **files: str) -> Path:
    """The control group of a process, `root` standing for /sys/fs/cgroup, with these files in its group's folder."""
    folder = tmp_path / "root" / line.split(":")[1].split(",", maxsplit=1)[0] / "jobs/mine"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder.parent / name.replace("__", ".")).write_text(text + "\n")
    (tmp_path / "groups").write_text(f"{line}/jobs/mine\n")
    return tmp_path / "groups"


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::", {"cpu__max": "150000 100000"}, 1.5),
        ("4:cpu,cpuacct:", {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}, 0.5),
        ("4:memory:", {}, None),
    ],
)
def test_a_quota_of_cpu_time_is_found(tmp_path: Path, line: str, files: dict[str, str], expected: float | None) -> None:
    assert system.cpu_quota(groups(tmp_path, line, **files), tmp_path / "root") == expected


PLACES: list[tuple[dict[str, list[Any]], str]] = [
    ({"hosts": [["n2"]] * 3}, "all repeats of {slow} ran on n2, and none of {fast} did"),
    ({"hosts": [["n2"], ["n3"], ["n4"]]}, ""),  # the spread between nodes is in its interval
    ({"device_name": ["Intel Xeon"] * 3}, "{fast} ran on AMD EPYC, and {slow} on Intel Xeon"),
    (
        {"started_at": [f"2026-06-0{day}T03:04:05+00:00" for day in (1, 2, 3)]},
        "{fast} was measured on 2026-01-01, and {slow} on 2026-06-01",
    ),
    ({"started_at": [f"2026-01-0{day}T05:00:00+00:00" for day in (2, 3, 4)]}, ""),  # two in common
]


@pytest.mark.parametrize(("figures", "reason"), PLACES)
def test_what_was_measured_elsewhere_or_on_another_day_is_not_certain(
    tree: Tree, pair: tuple[list[str], list[str]], figures: dict[str, list[Any]], reason: str
) -> None:
    here: dict[str, list[Any]] = {"hosts": [["n0"], ["n1"], ["n1"]]}
    here |= {"started_at": [f"2026-01-0{day}T03:04:05+00:00" for day in (1, 2, 3)]}
    tree.record(pair[0], **here)
    tree.record(pair[1], **here | figures)
    found = tree.answer()
    names = {"fast": found.candidates[0].name, "slow": found.candidates[1].name}
    assert words.paragraphs("doubts", found) == ([reason.format(**names)] if reason else [])
    assert found.certainty == ("likely" if reason else "winner")
    assert ("repeats on the same nodes" in words.told("certainty", found)) is bool(reason)


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"measured_steps": [400, 400, 49]}, "was timed for 6.3 s (49 steps), which is too short"),
        ({"second_half_ratio": [1.2, 1.15, 1.1]}, "was 1.1 times as fast in the second half of its timed steps"),
        ({"second_half_ratio": [0.8, 0.85, 0.9]}, "was 0.85 times as fast in the second half of its timed steps"),
        ({"second_half_ratio": [1.2, 0.9, 1.0]}, ""),
    ],
)
def test_what_was_timed_for_a_moment_or_is_no_steady_state_is_not_certain(
    tree: Tree, pair: tuple[list[str], list[str]], figures: dict[str, list[Any]], reason: str
) -> None:
    tree.record(pair[1], **figures)
    found = tree.answer()
    assert words.paragraphs("doubts", found) == ([f"{found.candidates[1].name} {reason}"] if reason else [])
    assert found.certainty == ("likely" if reason else "winner")
    assert words.told("certainty", found).endswith("Train longer, with more `epochs`.") is bool(reason)
