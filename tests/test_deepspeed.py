"""DeepSpeed's strategies train what one process trains, and divide what they say; operations its wheel lacks."""

import json
import os
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import debian_packages
from gate_parts import judged
from gate_runs import Gates
from plans import ROOT
from preloaded import spawned
from relay.process.ranks import Ranks
from sharded import batch, built, of_task, prepared
from stacks import provide

# What of the parameters and of the gradients each of two processes holds; None: nothing is said.
SHARES = {"zero1": (1, None), "zero3": (1 / 2, 1 / 2)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test judges both


@pytest.fixture(scope="module")
def verdicts(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Those of both strategies, which share their processes."""
    debian_packages.require()
    provide("deepspeed")
    return judged(gates, [{"strategy": name} for name in SHARES], 2, tmp_path_factory.mktemp("zero"))


@pytest.mark.parametrize("name", SHARES)
def test_it_trains_what_the_reference_trains_and_divides_its_part(verdicts: dict[str, Any], name: str) -> None:
    verdict, shares = verdicts[name], verdicts[name]["bytes_held_share"]
    assert verdict["problems"] == []
    assert verdict["max_loss_difference"] <= 1e-9
    parts = {part["name"] for part in verdict["parts"]}
    assert {"algorithm: parameters", "scaled: parameters", "between steps: state"} <= parts
    parameters, gradients = SHARES[name]
    assert shares["optimizer"] == pytest.approx([1 / 2] * 2, rel=0.05)
    assert shares["parameters"] == pytest.approx([parameters] * 2, rel=0.05)
    assert gradients is None or shares["gradients"] == pytest.approx([gradients] * 2, rel=0.05)


# A training under DeepSpeed goes on at another number of processes, and under another of its strategies.


class Counting(torch.optim.SGD):
    """Its rate follows from its steps, which it counts in its groups."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] = 0.1 / group["steps"]
        return super().step(closure)


def _train(ranks: Ranks, strategy: str, place: Path, *, resumes: bool) -> None:
    task = of_task("gpt-tiny", place / "text", "fp64")
    task.own.optimizer = lambda parameters: Counting(  # type: ignore[method-assign]
        [{"params": [each for each in parameters if (each.dim() > 1) is matrix]} for matrix in (True, False)], lr=0.1
    )
    trained = built(strategy, ranks, task)
    if resumes:
        trained.load(place / "middle")
    else:
        for _ in range(2):
            trained.train_step(batch(task, trained))
        trained.save(place / "middle").result()
    trained.train_step(batch(task, trained))
    whole = trained.whole_model()
    if ranks.rank == 0:
        torch.save(whole, place / f"{strategy}.pt")


@pytest.mark.usefixtures("verdicts")  # with them the tests' own forks see the stack's packages
def test_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    prepared("gpt-tiny", tmp_path / "text")
    spawned(partial(_train, resumes=False), 2, "zero3", tmp_path)
    spawned(partial(_train, resumes=True), 1, "zero1", tmp_path)
    unbroken, resumed = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("zero3", "zero1"))
    assert unbroken.keys() == resumed.keys()
    assert max(float((unbroken[name] - resumed[name]).abs().max()) for name in unbroken) <= 1e-12


def _step_of_a_loss(ranks: Ranks, place: Path, *, reads: bool) -> None:
    """One that calls a layer, which gathers its parameters; or reads a parameter by itself."""
    task = of_task("gpt-tiny", place / "text", "fp64")
    trained = built("zero3", ranks, task)
    norm = trained.model.get_submodule("norm")
    own = (lambda: norm.weight.square().sum()) if reads else (lambda: norm(torch.randn(64).double()).mean())
    task.own.loss = lambda outputs, batch: outputs.mean() + own()  # type: ignore[method-assign]
    trained.train_step(batch(task, trained))


@pytest.mark.usefixtures("verdicts")
def test_stage_3_refuses_a_loss_that_would_read_empty_parameters(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    prepared("gpt-tiny", tmp_path / "text")
    spawned(partial(_step_of_a_loss, reads=False), 2, tmp_path)
    with pytest.raises(Exception, match="the loss reads a parameter, of which stage 3 of ZeRO holds nothing"):
        spawned(partial(_step_of_a_loss, reads=True), 2, tmp_path)


# Operations that its wheel lacks: built once, before any step, and loaded from the cache afterwards


SOURCE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny_op", 0, -1, 0};
PyMODINIT_FUNC PyInit_tiny_op(void) { PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "number", 7); return made; }
"""
# DeepSpeed builds it as its own ones, out of a folder that another job would not have.
PROGRAM = """
import json, os, sys
os.environ["DS_ACCELERATOR"] = "cpu"
from pathlib import Path
from deepspeed.ops.op_builder.builder import OpBuilder
from relay.base.errors import UserError
from relay.strategies import _deepspeed_operations as operations

folder, found = Path(sys.argv[1]), {}

class Tiny(OpBuilder):
    def absolute_name(self): return f"deepspeed.ops.{self.name}"
    def sources(self): return [str(folder / "tiny.cpp")]
    def include_paths(self): return []
    def cxx_args(self): return []

def load(name, operation="tiny_op"):
    OpBuilder._loaded_ops.clear()
    try:
        found[name] = Tiny(operation).load().number
    except UserError as error:
        found[name] = str(error)

operations.take_over()
load("in a step")
with operations.built_where_missing():
    os.environ["CXX"] = "/nowhere/c++"
    load("without a compiler", "bare_op")
    del os.environ["CXX"]
    load("first")
    (folder / "tiny.cpp").write_text("no C++")
    load("again")
load("later")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    debian_packages.require()
    python, folder = provide("deepspeed"), tmp_path_factory.mktemp("operations")
    (folder / "tiny.cpp").write_text(SOURCE)
    told = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [str(python), "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept = sorted(path.name for path in folder.glob("cache/torch-relay/built/*/*") if path.name != "lock")
    told_by_it: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told_by_it | {"kept": kept, "said": done.stdout.count("Building DeepSpeed's operation tiny_op on node")}


def test_it_is_built_once_and_not_within_a_step(found: dict[str, Any]) -> None:
    within = "DeepSpeed asks for its operation tiny_op within a step, where nothing is compiled"
    assert (found["in a step"], found["later"]) == (within, within)
    assert (found["first"], found["again"]) == (7, 7)
    assert found["kept"] == ["tiny_op.so"]
    assert found["said"] == 1


def test_without_a_compiler_it_is_one_line_with_the_remedy(found: dict[str, Any]) -> None:
    told = r"DeepSpeed's operation bare_op could not be built on node \S+: .*; it is not in DeepSpeed's wheel; .*stack_"
    assert re.match(told, found["without a compiler"])
    assert "\n" not in found["without a compiler"]
