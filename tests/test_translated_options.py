"""The configs of docs/translating-options.md are what the page says: they load, and nothing of them is skipped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusters_of_gpus import somewhere
from plans import ROOT
from relay.planning.config import Comparison, Config, load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.spec.site import Site, load_site

pytest_plugins = ["plans"]
PAGE = (ROOT / "docs" / "translating-options.md").read_text()
CONFIGS: dict[str, dict[str, Any]] = {
    text.splitlines()[0].removeprefix("# "): yaml.safe_load(text)
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
}


@pytest.fixture(scope="module", name="somewhere")
def a_cluster(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Where a config names none."""
    return somewhere(tmp_path_factory.mktemp("site"))


def planned(name: str, somewhere: Site) -> Plan:
    """A config of the page, on the site that it names."""
    config = load(CONFIGS[name] | {"repeats": 1})
    site = load_site(config.site, ROOT) if config.site else somewhere
    return plan(config, site=site, root=ROOT, speeds=Path("none"))


@pytest.mark.usefixtures("in_the_project")
@pytest.mark.parametrize("name", CONFIGS)
def test_each_runs_as_it_stands(name: str, somewhere: Site) -> None:
    found = planned(name, somewhere)
    assert [(skipped.setting.strategy.name, skipped.reasons) for skipped in found.skipped] == []
    assert {each.strategy for each in found.config.comparisons} == {run.strategy.name for run in found.runs}


def of_script(script: str) -> str:
    (name,) = (name for name in CONFIGS if script in name)
    return name


@pytest.mark.usefixtures("in_the_project")
@pytest.mark.parametrize(
    ("script", "strategy", "processes", "of_each_process"),
    [
        ("cifar10-gpu-mps.py", "mps", 8, 512),
        ("cifar10-gpu-mps.py", "ddp", 2, 256),
        ("pytorch-ddp-test-pl.py", "zero3", 2, 256),
        ("gpu2h100", "ddp", 2, 32),
        ("three nodes", "ddp", 6, 64),
    ],
)
def test_a_process_has_the_batch_that_its_page_says(
    script: str, strategy: str, processes: int, of_each_process: int, somewhere: Site
) -> None:
    (run,) = (run for run in planned(of_script(script), somewhere).runs if run.strategy.name == strategy)
    assert run.shape.world_size == processes
    assert run.batch.global_batch_size == processes * of_each_process


@pytest.mark.usefixtures("in_the_project")
def test_a_replica_of_several_gpus_has_the_batch_that_its_page_says(somewhere: Site) -> None:
    found = planned(of_script("pytorch-model-data-par.py"), somewhere)
    (run,) = (run for run in found.runs if run.strategy.name != "pipeline")
    assert run.batch.global_batch_size // (run.shape.world_size // run.strategy.options["stages"]) == 512
    assert run.strategy.options["micro_batches"] == 32


def test_every_key_that_the_page_names_is_one() -> None:
    """In its tables, the column `here`: keys of the config, of a comparison, of a site's file, or a strategy's."""
    known = {*Config.model_fields, *Comparison.model_fields, *Site.model_fields, "micro_batches"}
    tables = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for cells in tables for name in re.findall(r"`([a-z_]+):? ?[^`]*`", cells[1])}
    assert {name for name in named if "_" in name} <= known
