"""`answer.json` keeps to its schema, which programs rely on, whatever the answer is."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from plans import ROOT
from relay.comparison import answer_files
from results_tree import REFUSED, Tree
from test_answer import ON_GPU, answer_of

pytest_plugins = ["results_tree"]
STEADY = [1000.0, 1002.0, 998.0]
SCHEMA = json.loads((ROOT / "workflow/schemas/answer.schema.json").read_text())


def written(tree: Tree) -> Any:
    answer_files.write([answer_of(tree, partial=True)], tree.root, tree.margin)
    return json.loads((tree.root / "answer.json").read_text(), parse_constant=pytest.fail)


def checked(tree: Tree) -> str:
    """The certainty of an answer that keeps to the schema."""
    value = written(tree)
    jsonschema.Draft202012Validator(SCHEMA).validate(value)
    return str(value["answers"][0]["certainty"])


def test_a_winner_with_all_that_can_be_beside_it(tree: Tree) -> None:
    tree.setting("cpu", STEADY, cpus_per_task=4)
    tree.setting("single_gpu", [800.0, 802.0, 798.0], **ON_GPU)
    tree.setting("ddp", STEADY, devices_per_node=2, verdict=REFUSED)
    tree.setting("cpu", [None, None], name="short", threads=2)
    tree.setting("cpu", [250.0], name="slow", loader="dataloader")
    tree.dropped = {"slow": "after its first repeat: another was 4.0 times as fast, and costs no more"}
    (failed,) = tree.setting("cpu", [900.0], name="failed", channels_last=True)
    tree.fail(failed, "RuntimeError: out of memory")
    tree.skip("fsdp", "needs two devices")
    assert checked(tree) == "winner"
