"""docs/pages.yaml: all that it names is there; docs/pages.md is made of it; `test_docs_commands` has its links."""

import re
from pathlib import Path

from pydantic import BaseModel

import centres_pages
from relay.config.comparisons import Comparison
from relay.config.config import Config
from relay.spec.site import Site
from relay.spec.site_blocks import Environment, LibTorch, OpenMP, Partition
from relay.spec.tasks import built_in

ROOT = Path(__file__).resolve().parents[1]
SCRIPT_PAGE = ROOT / "docs/measure-your-script.md"  # has the variables that scripts find; another test holds it
VARIABLES = "\n".join(path.read_text() for path in [SCRIPT_PAGE, *(ROOT / "scripts/relay").rglob("*.py")])
RULES = "\n".join(path.read_text() for path in [ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk")])
BLOCKS: dict[str, type[BaseModel]] = {"": Site, "partitions": Partition, "environment": Environment}
BLOCKS |= {"libtorch": LibTorch, "openmp": OpenMP}


def strategy(name: str) -> Path:
    return ROOT / f"scripts/relay/strategies/{name}.py"


def of_a_site(name: str) -> bool:
    block, _, key = name.rpartition(".")
    return key in BLOCKS[block].model_fields


def option(name: str) -> bool:
    of, _, key = name.partition(".")
    return f'"{key}":' in strategy(of).read_text() or f"    {key}:" in strategy(of).read_text()


def function_of_a_test(name: str) -> bool:
    file, _, function = name.partition("::")
    return f"\ndef {function}(" in (ROOT / "tests" / file).read_text()


THERE = {
    "doc": lambda name: (ROOT / "docs" / name.partition("#")[0]).is_file(),  # its anchor: tests/test_docs_commands.py
    "file": lambda name: (ROOT / name).is_file(),
    "key": lambda name: name in {*Config.model_fields, *Comparison.model_fields},
    "site": of_a_site,
    "target": lambda name: re.search(rf"(?m)^ *rule {name}:", RULES),
    "strategy": lambda name: strategy(name).is_file(),
    "task": lambda name: name in built_in(),
    "option": option,
    "variable": lambda name: re.search(rf"\b{name}\b", VARIABLES),
    "test": function_of_a_test,
}


def test_every_thing_that_the_page_names_is_there() -> None:
    assert (ROOT / "docs/pages.md").read_text() == centres_pages.page(ROOT), "run 'make schema'"
    rows = [row for each in centres_pages.read(ROOT) for row in each["rows"]]
    assert {row["state"] for row in rows} == set(centres_pages.STATES)
    named = {thing for row in rows for thing in row["where"]}
    assert [thing for thing in named if not THERE[thing.split(" ", 1)[0]](thing.split(" ", 1)[1])] == []
