"""Every fenced command of the documentation is run, or held against what it calls, and what it prints against the page.

`tests/support/pages.py` finds the blocks. A block that no test knows fails here: give it a test, or a line below.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

from pages import PAGES, ROOT, SHELL, Block, all_blocks, block, blocks, holds, masked
from relay.comparison import alone
from relay.planning import config as configs
from relay.virtual_cluster.cluster import PACKAGES
from results_tree import Tree, shown
from snakemake_calls import called

pytest_plugins = ["results_tree"]

BLOCKS = [*all_blocks()]
WRITTEN = ("mine.yaml", "discs.yaml")  # by the user, who follows the page
# Commands that no test runs as they stand there, and what holds them instead.
HELD_ELSEWHERE = {
    "apt-get install": "it changes the system; `virtual_cluster.py up` names the same packages (below)",
    "scontrol update": "a command of Slurm itself",
    "cmake": "tests/test_libtorch.py builds with CMake",
    "build/relay_libtorch": "tests/test_libtorch.py runs the program",
    "pip install ~/torch-relay/scripts/relay/chain": "tests/test_make_a_chain.py builds the wheel",
    "relay-chain sbatch": "tests/test_chain_sbatch.py submits such a script",
    "relay-chain": "tests/test_chain_page.py types the command",
    "RELAY/.venv/bin/snakemake": "tests/test_script_page.py types it; tests/test_script_slurm.py runs the target chain",
}
# What is printed, by the first words of the block: the test that holds it against the product.
DRAWN = "tests/test_docs_drawn.py"
PRINTED = {
    "lenet-digits": "test_the_table_has_the_columns_on_the_page",
    "relative test": "test_the_table_has_the_columns_on_the_page",
    "script relative": "tests/test_script_page.py",
    "config ─▶ planning": "",  # a picture
    "discs.py, with width 8": "tests/test_own_model_page.py",
    "chain of": DRAWN,
    "12:04 Preparing": DRAWN,
    "run state trained": DRAWN,
    "asks for, by measurement": DRAWN,
    "device-hours: at most": DRAWN,
    "what runs segments": "test_the_tutorials_plan_is_the_one_on_the_page",
    "ddp (2 procs, 1 thread, resident): 6,570": "test_a_strategys_speed_is_told_as_on_the_page",
    "The virtual cluster is up": "tests/test_virtual_cluster.py",
    "chain = ChainCallback() trainer = Trainer(…, callbacks=[chain]) trainer.train": "tests/test_chain_huggingface.py",
    "chain = ChainCallback() trainer = Trainer(…, callbacks=[chain]) trainer.fit": "tests/test_chain_lightning.py",
    "#!/bin/bash #SBATCH --time=1:00:00": "tests/test_chain_sbatch.py",
    "relay.chain: stops after step": "tests/test_chain_page.py",
    "relay.chain: goes on from step": "tests/test_chain_page.py",
    "def unfreeze(): optimizer.add_param_group": "tests/test_chain_ends.py",
    "salloc --nodes=1": "tests/test_held.py",
    "allocation 4711": "tests/test_held.py",
    "#!/bin/bash #SBATCH --nodes=2": "tests/test_held.py",
    "PARTITION TIMELIMIT": "tests/test_virtual_cluster.py",
}


def of(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == kind]


# Commands: what they call is there, and takes what they give it


@cache
def rules() -> set[str]:
    status, listed = called(["--list-rules", "--snakefile", ROOT / "Snakefile", "--quiet"], ROOT)
    assert status == 0, listed
    strategies = {path.stem for path in (ROOT / "scripts/relay/strategies").glob("[a-z]*.py")}
    return set(listed.split()) | strategies


def snakemake_takes(arguments: list[str]) -> None:
    profile = [word for flag, word in pairwise(arguments) if flag == "--profile"]
    assert all((ROOT / each / "config.yaml").is_file() for each in profile), profile
    given = get_argument_parser([str(ROOT / each) for each in profile]).parse_args(arguments)
    assert set(given.targets) <= rules(), given.targets
    assert all(str(each) in WRITTEN or (ROOT / each).is_file() for each in given.configfile), given.configfile


@cache
def help_of(program: str) -> str:
    done = subprocess.run([sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def script_takes(program: str, arguments: list[str]) -> None:
    if "--" in arguments:
        cut = arguments.index("--")
        snakemake_takes(arguments[cut + 1 :])
        arguments = arguments[:cut]
    text = help_of(program)
    for word in arguments:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", text), f"{program} {word}"
        elif re.fullmatch("[a-z]+", word) and "{" in text:  # one of several acts
            assert re.search(rf"[{{,]{word}[,}}]", text), f"{program} {word}"


def make_has(arguments: list[str]) -> None:
    done = subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_a_command_calls_is_there() -> None:
    for words in (words for each in BLOCKS if each.is_command for words in each.commands):
        match words:
            case ["snakemake", *arguments]:
                snakemake_takes(arguments)
            case ["python", program, *arguments]:
                script_takes(program, arguments)
            case ["make", *arguments]:
                make_has(arguments)
            case [word, *_] if word in SHELL:
                continue
            case _:
                assert any(" ".join(words).startswith(known) for known in HELD_ELSEWHERE), words


def test_the_packages_of_the_virtual_cluster_are_those_on_its_page() -> None:
    install, _ = block("docs/virtual-cluster.md", "apt-get").lines
    assert set(PACKAGES.values()) == {word for word in install.split()[2:] if word[0] != "-"}


def test_no_block_is_overlooked() -> None:
    """Such as one that is indented, or that names a shell as its language."""
    fences = sum(len(re.findall(r"(?m)^[ >]*(?:```|~~~)", (ROOT / page).read_text())) for page in PAGES)
    assert fences == 2 * len(BLOCKS)
    assert {block.language for block in BLOCKS} <= {"", "yaml", "python"}


# What is printed, and files


def test_what_is_printed_is_held_by_a_test() -> None:
    for each in of(""):
        if not each.is_command:
            text = " ".join(each.text.split())
            (by,) = [test for beginning, test in PRINTED.items() if text.startswith(beginning)]
            assert not by or by in globals() or (ROOT / by).is_file()


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_a_config_on_a_page_is_one(block: Block) -> None:
    given = yaml.safe_load(block.text)
    if block.page == "docs/torch-versions.md":  # two keys of a site's file
        return
    given.pop("strategy_folders", None)
    configs.load(given)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_table_has_the_columns_on_the_page(
    page: str, full: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = masked(block(page, "strategy", "setting").text.partition("────")[0])
    first = next(number for number, line in enumerate(head) if line.startswith("relative"))
    assert holds(masked(shown(full, capsys, monkeypatch)), [line for line in head[first:] if line])


def test_a_strategys_speed_is_told_as_on_the_page(tree: Tree) -> None:
    tree.setting("ddp", [6500.0, 6600.0, 6700.0], devices_per_node=2)
    drawn = "\n".join(alone.lines(json.loads(tree.write_plan().read_text()), tree.root, ["ddp"]))
    assert masked(drawn) == masked(block("docs/tutorial.md", "ddp (2 procs").text)


# Cheap commands, as their user gives them


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """A checkout of somebody who follows the tutorial, with the file that it wants to be written."""
    folder = tmp_path / "newcomer"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in ("results", ".snakemake", ".git", *WRITTEN):
            (folder / entry.name).symlink_to(entry)
    (folder / "mine.yaml").write_text(next(each for each in blocks("docs/tutorial.md") if each.language == "yaml").text)
    return folder


def typed(folder: Path, text: str) -> str:
    """What the commands print, errors apart, in a terminal of 120 columns; their programs are this Python's."""
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    known = {name: value for name, value in os.environ.items() if name not in ("SNAKEMAKE_PROFILE", "SLURM_CONF")}
    command = ["bash", "-e", "-c", text]
    done = subprocess.run(command, cwd=folder, env=known | own, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_tutorials_plan_is_the_one_on_the_page(newcomer: Path) -> None:
    printed = typed(newcomer, block("docs/tutorial.md", "snakemake plan --profile profiles/local").text)
    lines = [line.rstrip() for line in printed.splitlines() if not line.startswith("warning: set in the environment")]
    assert [line for line in lines if line] == block("docs/tutorial.md", "what", "runs").lines


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_tutorial_word_for_word_on_this_machine(newcomer: Path) -> None:
    """No other test types the tutorial's commands one after the other."""
    page = "docs/tutorial.md"
    compared = typed(newcomer, block(page, "snakemake --profile profiles/local").text)
    assert "Report: results/comparison.html" in compared
    assert block(page, "strategy", "setting").lines[1].split() == next(
        line.split() for line in compared.splitlines() if line.startswith("strategy")
    )
    told = masked(typed(newcomer, block(page, "snakemake ddp").text))
    assert told == masked(block(page, "ddp (2 procs").text)
