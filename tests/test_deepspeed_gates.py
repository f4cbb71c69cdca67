"""DeepSpeed's strategies train what one process trains, and divide what they say. Wrong ones are found."""

from __future__ import annotations

from typing import Any

import pytest

import debian_packages
from gate_runs import Gates
from stacks import provide
from zero_gates import judged, named

GPT = {"task": "gpt-deep-tiny"}
# Cells whose gates share their processes, by the group's name, and the group's world size.
RIGHT: dict[str, tuple[int, list[dict[str, Any]]]] = {
    "two": (
        2,
        [
            {"strategy": "zero1"},
            {"strategy": "zero3"},
        ],
    ),
    "four": (
        4,
        [
            {"strategy": "zero3", **GPT, "precision": "fp64"},
        ],
    ),
}
WRONG = {
    "wrong_zero_clipping": "scaled: parameters",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test judges all cells of its group


class Verdicts(dict[str, dict[str, Any]]):
    """The verdicts of a group's cells, made when they are first asked for."""

    def __init__(self, gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.gates, self.folders = gates, tmp_path_factory

    def __missing__(self, group: str) -> dict[str, Any]:
        size, right = RIGHT[group]
        cells = [*right, *({"strategy": name} for name in WRONG if group == "two")]
        self[group] = judged(self.gates, cells, size, self.folders.mktemp("zero"))
        return self[group]


@pytest.fixture(scope="module")
def verdicts(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    debian_packages.require()
    provide("deepspeed")
    return Verdicts(gates, tmp_path_factory)


def grouped(group: str, *values: object) -> Any:
    """A case of that group. Only the long ones, on four processes, divide a model that has AdamW."""
    return pytest.param(group, *values, marks=[pytest.mark.long] if group != "two" else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name"), [grouped(group, named(cell)) for group, (_, cells) in RIGHT.items() for cell in cells]
)
def test_it_trains_what_the_reference_trains(verdicts: Verdicts, group: str, name: str) -> None:
    """Only the long case is of four processes and AdamW."""
    verdict = verdicts[group][name]
    assert verdict["problems"] == []
    assert verdict["max_loss_difference"] <= 1e-9
    assert {"algorithm: parameters", "scaled: parameters", "between steps: state"} <= {
        part["name"] for part in verdict["parts"]
    }


@pytest.mark.parametrize(
    ("group", "name", "parameters", "gradients"),
    [
        grouped("two", "zero1", 1, None),
        grouped("two", "zero3", 1 / 2, 1 / 2),
        grouped("four", "zero3-gpt-deep-tiny-fp64", 1 / 4, 1 / 4),
    ],
)
def test_each_stage_divides_its_part(
    verdicts: Verdicts, group: str, name: str, parameters: float, gradients: float | None
) -> None:
    """Only the long case divides parameters among four."""
    size, shares = RIGHT[group][0], verdicts[group][name]["bytes_held_share"]
    assert shares["optimizer"] == pytest.approx([1 / size] * size, rel=0.05)
    assert shares["parameters"] == pytest.approx([parameters] * size, rel=0.05)
    if gradients is not None:
        assert shares["gradients"] == pytest.approx([gradients] * size, rel=0.05)


@pytest.mark.parametrize(("strategy", "found"), WRONG.items())
def test_a_wrong_one_is_found(verdicts: Verdicts, strategy: str, found: str) -> None:
    assert any(found in problem for problem in verdicts["two"][strategy]["problems"])
