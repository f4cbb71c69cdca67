"""What a strategy of one's own can have wrong: each is told with its place, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain_runs import DDP, Bench
from relay.base.errors import UserError
from relay.spec import requirements

pytest_plugins = ["chain_runs"]


def refused(folder: Path, source: str) -> str:
    path = folder / "mine.py"
    path.write_text(source)
    with pytest.raises(UserError) as error:
        requirements.read(path)
    return str(error.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ("Requirements(stack='torch',\n        least_devices=count())", "'least_devices=count()'"),
        ("Requirements(**SAID)", "'**SAID'"),
    ],
)
def test_requirements_that_are_computed_are_told_with_their_line(tmp_path: Path, stated: str, told: str) -> None:
    line = refused(tmp_path, f"class A(Strategy):\n    requirements = {stated}\n")
    assert line.startswith(f":{3 if 'count' in stated else 2}: requirements: {told} has to be computed")


@pytest.mark.parametrize(("processes", "call"), [({}, "raise SystemExit(0)"), (DDP, "os._exit(0)")], ids=["one", "two"])
def test_a_process_that_ends_itself_is_a_fault_and_no_lost_node(
    bench: Bench, processes: dict[str, object], call: str
) -> None:
    ends = f"if self.steps == 2 and self.ranks.rank == 0:\n            {call}"
    strategy = bench.strategy("mine", ends, base="ddp" if processes else "cpu")
    chain = bench.chain("results", total_steps=6, **(processes | strategy))
    assert chain.forked().status == 1
    name = "os._exit(0)" if "_exit" in call else "sys.exit(0)"
    assert chain.fault()["error"] == (
        f"EndedItself: {name} was called in the middle of the work; return, or raise an error"
    )
    assert "in train_step" in chain.fault()["traceback"]
    assert not (chain.declared / "step-6.json").exists()
