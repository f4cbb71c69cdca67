"""A verdict of which a process ended badly, after it was written, is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate_runs import Gates
from own_gates import judged, own_strategy
from relay.base.ending import INTERRUPTED
from relay.launch.launcher import launch
from results_tree import Tree

pytest_plugins = ["results_tree"]
pytestmark = pytest.mark.slow

AT_THE_END = """
    @classmethod
    @contextmanager
    def service(cls, run_id, device):
        yield
        {what}
"""


@pytest.mark.parametrize("start", [None, launch], ids=["forked", "launched"])
def test_a_process_that_aborts_after_the_verdict_leaves_none(
    gates: Gates, tmp_path: Path, capfd: pytest.CaptureFixture[str], start: object
) -> None:
    path = own_strategy(tmp_path / "strategies", "aborts", more=AT_THE_END.format(what="os.abort()"))
    found = judged(gates, path, **({"start": start} if start else {}))
    assert found.status == INTERRUPTED
    assert found.verdict is None
    assert "its processes ended without a word (status -" in capfd.readouterr().err


def test_a_process_that_raises_after_the_verdict_is_not_equivalent(gates: Gates, tmp_path: Path) -> None:
    path = own_strategy(tmp_path / "strategies", "raises", more=AT_THE_END.format(what="raise RuntimeError('late')"))
    found = judged(gates, path)
    assert found.status == 0
    assert found.verdict["equivalent"] is False
    assert found.verdict["problems"] == ["the strategy failed in the gate: RuntimeError: late"]


def test_a_right_strategy_ends_well(gates: Gates, tmp_path: Path) -> None:
    found = judged(gates, own_strategy(tmp_path / "strategies", "right"))
    assert (found.status, found.verdict["equivalent"], found.verdict["problems"]) == (0, True, [])


def test_a_setting_without_a_verdict_is_never_best(tree: Tree) -> None:
    tree.setting("cpu", [100.0, 101.0])
    tree.setting("ddp", [9000.0, 9100.0], name="aborted", devices_per_node=2)
    (tree.root / "equivalence/gates/gate-aborted/verdict.json").unlink()
    row = tree.row("ddp", partial=True)
    assert (row["status"], row["equivalent"], row["standing"]) == ("failed", None, None)
    assert tree.row("cpu", partial=True)["standing"] == "fastest"
