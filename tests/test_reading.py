"""The config's files as a call gives them: what Snakemake reads, but with the numbers as they are written."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from living import well
from relay.base import entry
from relay.config.reading import given_config
from snakemake_calls import ROOT, called

SNAKEFILE = ["--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local")]


def workflow(*files: Path, replace: bool = False, **values: Any) -> SimpleNamespace:
    """As much of Snakemake's workflow as is read."""
    settings = SimpleNamespace(configfiles=files, config=values, replace_workflow_config=replace)
    return SimpleNamespace(config_settings=settings)


def test_files_and_values_are_merged_as_snakemake_does(tmp_path: Path) -> None:
    mine, defaults = tmp_path / "mine.yaml", tmp_path / "config.yaml"
    defaults.write_text("seed: 1\ngate: {seed: 2, steps: 200}\ncomparisons: [{strategy: cpu}, {strategy: ddp}]\n")
    mine.write_text("gate: {steps: 20}\nsite: a\ncomparisons: [{strategy: cpu}]\nepochs: 1:30\n")
    found = given_config(workflow(mine, site="b"), defaults)
    merged = {"seed": 1, "gate": {"seed": 2, "steps": 20}, "comparisons": [{"strategy": "cpu"}], "site": "b"}
    assert found == merged | {"epochs": "1:30"}  # which Snakemake's own reading makes 90
    assert "seed" not in given_config(workflow(mine, replace=True), defaults)
    mine.write_text("gate: {}\nseed: {}\ncomparisons: {}\n")  # an empty block in place of another value is a mistake
    found = given_config(workflow(mine), defaults)
    assert found == {"seed": {}, "gate": {"seed": 2, "steps": 200}, "comparisons": {}}


@pytest.mark.slow
def test_a_config_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("__use_yte__: true\nepochs: ?open('ran', 'w').close() or 2\n")
    refused = "mine.yaml: __use_yte__: is not allowed, because reading the file would run it; allowed: values"
    assert dry_run(tmp_path, "--configfile", "mine.yaml") == (1, [f"error: {refused}"])
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_who_only_asks_how_far_a_colleagues_comparison_is_runs_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("open('ran', 'w')\n")
    (tmp_path / "more").mkdir()
    strategy = "class Their:\n    requirements = Requirements(needs=('many',))\ndef many(*_):\n    open('ran', 'w')\n"
    (tmp_path / "more" / "their.py").write_text(strategy)
    _, printed = called([*SNAKEFILE, "status", "--config", "task=theirs.py"], tmp_path)
    assert "task theirs.py: not known yet; to look at it runs its file, as `snakemake -n` does" in printed
    theirs = ["strategy_folders=['more']", "comparisons=[{'strategy': 'their'}]"]
    (tmp_path / "typo.py").write_text("clas Task:\n")
    printed = well(called([*SNAKEFILE, "-l", "--config", *theirs, "task=typo.py"], tmp_path))
    assert "warning: typo.py:1: no valid Python: invalid syntax" in printed
    assert "their" in printed.splitlines()
    assert not (tmp_path / "ran").exists()


def dry_run(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit status of `snakemake -n`, and its lines but for Snakemake's own first ones."""
    environment = {name: value for name, value in os.environ.items() if name != "SNAKEMAKE_PROFILE"}
    status, printed = called([*SNAKEFILE, "-n", *arguments], folder, environment)
    own = ("Using profile", "Config file", "Assuming unrestricted")
    return status, [line for line in printed.splitlines() if not line.startswith(own)]


@pytest.mark.slow
def test_the_workflow_reads_its_files_strictly(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("runtime_minutes: 2:00:00\nseed: 010\n")
    status, lines = dry_run(tmp_path, "--configfile", "mine.yaml")
    assert (status, len(lines)) == (1, 2), lines
    assert lines[0].startswith("error: config: seed: '010' is not allowed; allowed: a whole number")
    assert lines[1].startswith("config: runtime_minutes: '2:00:00' is not allowed; allowed: a whole number")


@pytest.mark.slow
def test_as_a_module_of_another_workflow_it_says_how_it_is_used(tmp_path: Path) -> None:
    """A job gets a copy of the whole project, which a module is not."""
    module = f'module relay:\n    snakefile: "{ROOT}/Snakefile"\n    config: {{}}\nuse rule * from relay\n'
    (tmp_path / "Snakefile").write_text(module)
    status, printed = called(["--profile", f"{ROOT}/profiles/local", "-n"], tmp_path)
    (line,) = (line for line in printed.splitlines() if "error" in line)
    assert status == 1
    assert f"Torch Relay is no module of another workflow; give `snakemake -s {ROOT}/Snakefile`" in line


@pytest.mark.slow
def test_each_target_that_cannot_be_made_is_told_why(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("epochs: 1\n")
    wrong = {
        "dpd": "target 'dpd' is unknown; did you mean 'ddp'? `snakemake --list` has all, or",
        "dataset": "target 'dataset' makes one file of many, and is no target; did you mean 'data'? `snakemake -",
        "fsdp": "target 'fsdp': the config does not compare this strategy; to add it, write `- strategy: fsdp` below ",
        "–n": "target '–n' is unknown (U+2013, en dash, stands in it: type - (or --)); allowed: ",
        "mine.yaml": "target 'mine.yaml' is a file that no rule makes; a config is given by --configfile mine.yaml",
        "epochs=3": "target 'epochs=3' is unknown; a value for the config is given by --config epochs=3",
        "results/runs/x/summary.json": "target 'results/runs/x/summary.json': the config plans no run 'x'; ",
    }
    options = {"--until": "dpd", "--forcerun": "strat", "--omit-from": "nothing"}
    file = "results/plan.json"  # what follows from it is finished, and would be left as it is
    words = [word for option in options.items() for word in option]
    status, lines = dry_run(tmp_path, *wrong, *words[:4], file, *words[4:])
    assert (status, len(lines)) == (1, len(wrong) + len(options) + 1), lines
    told = f"error: --forcerun: '{file}' is a file; allowed: rules. `{entry.typed()} train-again RUN` lets a "
    assert [line for line in lines if line.startswith(told)]
    for line, start in zip(lines, wrong.values(), strict=False):
        assert line.startswith(f"error: {start}")
    meant = {"--until": "did you mean 'ddp'? ", "--forcerun": "did you mean 'start'? ", "--omit-from": "allowed: "}
    for option, name in options.items():
        assert any(line.startswith(f"error: {option}: '{name}' is unknown; {meant[option]}") for line in lines), lines
