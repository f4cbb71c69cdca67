"""What a strategy of one's own can have wrong: each is told with its place, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain_runs import DDP, Bench
from relay.base.errors import UserError
from relay.spec import requirements

pytest_plugins = ["chain_runs"]

TWO = """\
class First(Strategy):
    requirements = Requirements()

class Second(Strategy):
    requirements: Requirements = Requirements(least_devices=2)
"""


def refused(folder: Path, source: str) -> str:
    path = folder / "mine.py"
    path.write_text(source)
    with pytest.raises(UserError) as error:
        requirements.read(path)
    return str(error.value).removeprefix(str(path))


def test_two_classes_with_requirements_are_named(tmp_path: Path) -> None:
    line = refused(tmp_path, TWO)
    assert line.startswith(": First (line 2) and Second (line 5) have `requirements`; allowed: one class of a file")


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


def test_an_annotated_literal_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class A(Strategy):\n    requirements: ClassVar[Requirements] = Requirements(least_devices=3)\n")
    assert requirements.read(path).least_devices == 3


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


def test_a_process_that_ends_without_python_is_a_fault_too(bench: Bench) -> None:
    ends = "if self.steps == 2:\n            __import__('ctypes').CDLL(None)._exit(0)"
    chain = bench.chain("results", total_steps=6, **bench.strategy("mine", ends))
    ended = chain.forked()
    assert ended.status == 1
    assert "its processes ended by themselves in the middle of their work" in ended.errors
