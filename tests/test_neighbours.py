"""Where others may have slowed the runs, or they train something else, no answer is certain: a sentence says why."""

from pathlib import Path
from typing import Any

import pytest

from relay.comparison import words
from relay.comparison.answer import Answer
from relay.comparison.decision import answers
from relay.comparison.inputs import read_inputs
from relay.comparison.table import comparison_rows
from relay.process import system
from results_tree import Tree
from test_answer import answer_of

pytest_plugins = ["results_tree"]


ALONE = {"virtual": False, "cpu_quota": None, "shares_nodes": False, "other_cpus": 0.04}
STEADY = [1000.0, 1002.0, 998.0]
REASONS: list[tuple[dict[str, Any], str]] = [
    ({"virtual": True}, "the machine is virtual, and others may compute on its processors"),
    ({"cpu_quota": 1.5}, "a quota limits the CPU time to that of 1.5 CPUs, as in a shared container"),
    ({"shares_nodes": True}, "other jobs may compute on the same nodes"),
    ({"other_cpus": 0.83}, "other programs used up to 0.83 CPUs meanwhile"),
]


@pytest.mark.parametrize(("recorded", "reason"), REASONS)
def test_a_clear_measurement_beside_others_is_not_certain(tree: Tree, recorded: dict[str, Any], reason: str) -> None:
    tree.setting("cpu", STEADY, summary=ALONE)
    tree.setting("cpu", [500.0, 501.0, 499.0], loader="dataloader", summary=ALONE | recorded)
    found = answer_of(tree)
    assert found.certainty == "likely"
    assert words.certainty(found) == (
        "The measurements are clear: even at the edges of the 95 % intervals the recommendation stays the same. "
        f"But it is not certain, because {reason}. To be certain, measure on a node of your own."
    )


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


# Figures of the slow setting's three repeats, why nothing is certain then, and what helps.
ELSEWHERE = "repeats on the same nodes"
RECORDED: list[tuple[dict[str, list[Any]], str, str]] = [
    ({"hosts": [["n2"]] * 3}, "all repeats of {slow} ran on n2, and none of {fast} did", ELSEWHERE),
    ({"hosts": [["n2"], ["n3"], ["n4"]]}, "", ""),  # the spread between nodes is in its interval
    ({"device_name": ["Intel Xeon"] * 3}, "{fast} ran on AMD EPYC, and {slow} on Intel Xeon", ELSEWHERE),
    (
        {"started_at": [f"2026-06-0{day}T03:04:05+00:00" for day in (1, 2, 3)]},
        "{fast} was measured on 2026-01-03, and {slow} on 2026-06-01",
        ELSEWHERE,
    ),
    ({"started_at": [f"2026-01-0{day}T05:00:00+00:00" for day in (2, 3, 4)]}, "", ""),  # two in common
    ({"measured_steps": [400, 400, 49]}, "{slow} was timed for 6.3 s (49 steps), which is too short", "Train longer"),
    ({"second_half_ratio": [1.2, 1.15, 1.1]}, "in the second half of its timed steps", ""),
    ({"second_half_ratio": [0.8, 0.85, 0.9]}, "in the second half of its timed steps", ""),
    ({"second_half_ratio": [1.2, 0.9, 1.0]}, "", ""),
]


@pytest.mark.parametrize(("figures", "reason", "helps"), RECORDED)
def test_what_was_measured_elsewhere_or_otherwise_is_not_certain(
    tree: Tree, figures: dict[str, list[Any]], reason: str, helps: str
) -> None:
    here: dict[str, list[Any]] = {
        "hosts": [["n0"], ["n1"], ["n1"]],
        "started_at": [f"2026-01-0{day}T03:04:05+00:00" for day in (1, 2, 3)],
    }
    fast = tree.setting("cpu", STEADY, summary=ALONE)
    slow = tree.setting("cpu", [500.0, 501.0, 499.0], loader="dataloader", summary=ALONE)
    tree.record(fast, **here)
    tree.record(slow, **here | figures)
    found = answer_of(tree)
    names = {"fast": found.candidates[0].name, "slow": found.candidates[1].name}
    told = words.doubts(found)
    assert len(told) == bool(reason)
    assert reason.format(**names) in "".join(told)
    assert found.certainty == ("likely" if reason else "winner")
    assert helps in words.certainty(found)
    assert (ELSEWHERE in words.certainty(found)) is (helps == ELSEWHERE)


# Other options of a task are another model or other data: each has an answer of its own, and no speed is compared.


def learnt(dice: float, loss: float) -> dict[str, Any]:
    """What a run's summary says of a segmentation."""
    evaluation = {"step": 22, "test_loss": loss, "test_accuracy": None, "test_metrics": {"dice": dice}}
    return {"test_accuracy": None, "test_metric": dice, "test_loss": loss, "evaluations": [evaluation]}


@pytest.fixture
def widths(tree: Tree) -> Tree:
    """One process trains the narrow network, two processes the wide one."""
    narrow, wide = ({"task_options": {"width": width}, "metrics": ("dice",)} for width in (4, 8))
    tree.setting("cpu", [1000.0, 1010.0, 990.0], summary=learnt(0.287, 0.7), **narrow)
    tree.setting("ddp", [760.0, 767.6, 752.4], summary=learnt(0.889, 0.1), devices_per_node=2, **wide)
    return tree


def all_answers(tree: Tree) -> list[Answer]:
    inputs = read_inputs(tree.write_plan(), tree.root)
    return answers(inputs, comparison_rows(inputs))


def test_each_has_an_answer_and_what_has_learnt_most_comes_first(widths: Tree) -> None:
    wide, narrow = all_answers(widths)
    assert [wide.trained, narrow.trained] == ["lenet-digits (width=8)", "lenet-digits (width=4)"]
    assert (wide.certainty, narrow.certainty) == ("alone", "alone")
    assert words.sentence(wide).startswith(
        "For lenet-digits (width=8), ddp (2 procs, 1 thread, resident, width=8) is recommended. "
        "Its test dice is 0.889. Ask Slurm for 1 node with 2 CPUs"
    )
    assert "Its test dice is 0.287." in words.sentence(narrow)
    for answer in (wide, narrow):
        told = " ".join([words.sentence(answer), words.certainty(answer), *words.reasons(answer)])
        assert "speed does not compare them" in told
        assert "may not pay" not in told
        assert "ideal double" not in told
        assert "times as fast" not in told
