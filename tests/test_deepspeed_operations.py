"""DeepSpeed's operations that its wheel lacks: built once, before any step, and loaded from the cache afterwards."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest

import debian_packages
from plans import ROOT
from stacks import provide

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
    kept = sorted(path.name for path in folder.glob("cache/torch-relay/built/*/*"))
    told_by_it: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told_by_it | {"kept": kept, "said": done.stdout.count("Building DeepSpeed's operation tiny_op on node")}


@pytest.mark.slow
def test_it_is_built_once_and_not_within_a_step(found: dict[str, Any]) -> None:
    within = "DeepSpeed asks for its operation tiny_op within a step, where nothing is compiled"
    assert (found["in a step"], found["later"]) == (within, within)
    assert (found["first"], found["again"]) == (7, 7)
    assert found["kept"] == ["tiny_op.so"]
    assert found["said"] == 1


@pytest.mark.slow
def test_without_a_compiler_it_is_one_line_with_the_remedy(found: dict[str, Any]) -> None:
    told = r"DeepSpeed's operation bare_op could not be built on node \S+: .*; it is not in DeepSpeed's wheel; .*stack_"
    assert re.match(told, found["without a compiler"])
    assert "\n" not in found["without a compiler"]
