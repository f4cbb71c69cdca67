"""Every fenced command of the documentation is run, or held against what it calls, and what it prints against the page.

`tests/support/pages.py` finds the blocks. A block that no test knows fails here: give it a test, or a line below.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

import virtual_cluster
from pages import PAGES, ROOT, SHELL, Block, all_blocks, block, blocks, holds, masked
from relay.comparison import alone
from relay.planning import config as configs
from relay.virtual_cluster.cluster import PACKAGES
from results_tree import Tree, shown
from slurm_packages import require

pytest_plugins = ["results_tree"]

BLOCKS = [*all_blocks()]
WRITTEN = ("mine.yaml", "discs.yaml")  # by the user, who follows the page
# Commands that no test runs as they stand there, and what holds them instead.
HELD_ELSEWHERE = {
    "apt-get install": "it changes the system; `virtual_cluster.py up` names the same packages (below)",
    "scontrol update": "the long test of the virtual cluster, below",
    "cmake": "tests/test_libtorch.py builds with CMake",
    "build/relay_libtorch": "tests/test_libtorch.py runs the program",
    "pip install ./scripts/relay/chain": "tests/test_make_a_chain.py builds the wheel",
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
    "The virtual cluster is up": "test_the_virtual_cluster_does_what_its_page_says",
    "chain = ChainCallback() trainer = Trainer(…, callbacks=[chain]) trainer.train": "tests/test_chain_huggingface.py",
    "chain = ChainCallback() trainer = Trainer(…, callbacks=[chain]) trainer.fit": "tests/test_chain_lightning.py",
    "#!/bin/bash #SBATCH --time=1:00:00": "tests/test_chain_sbatch.py",
    "relay.chain: stops after step": "tests/test_chain_page.py",
    "relay.chain: goes on from step": "tests/test_chain_page.py",
    "def unfreeze(): optimizer.add_param_group": "tests/test_chain_ends.py",
    "PARTITION TIMELIMIT": "test_the_virtual_cluster_does_what_its_page_says",
}


def of(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == kind]


# Commands: what they call is there, and takes what they give it


@cache
def rules() -> set[str]:
    listed = subprocess.run(
        [sys.executable, "-m", "snakemake", "--list-rules", "--snakefile", ROOT / "Snakefile", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    strategies = {path.stem for path in (ROOT / "scripts/relay/strategies").glob("[a-z]*.py")}
    return set(listed.stdout.split()) | strategies


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
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.is_command], ids=str)
def test_what_a_command_calls_is_there(block: Block) -> None:
    for words in block.commands:
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


@pytest.mark.parametrize(
    "wrong",
    [
        "snakemake no_such_rule",
        "snakemake --profile profiles/local --configfile mine.yaml plan",  # the target counts as a file
        "snakemake --profile profiles/none",
        "python scripts/adopt.py --no-such-option",
        "python scripts/virtual_cluster.py sideways",
        "make no-such-target",
        "cp a b",
    ],
)
def test_a_wrong_command_is_seen(wrong: str) -> None:
    block = Block("page.md", 1, "", f"make help\n{wrong}\n")
    with pytest.raises((AssertionError, SystemExit)):
        test_what_a_command_calls_is_there(block)


def test_no_block_is_overlooked() -> None:
    """Such as one that is indented, or that names a shell as its language."""
    fences = sum(len(re.findall(r"(?m)^[ >]*(?:```|~~~)", (ROOT / page).read_text())) for page in PAGES)
    assert fences == 2 * len(BLOCKS)
    assert {block.language for block in BLOCKS} <= {"", "yaml", "python"}


# What is printed, and files


@pytest.mark.parametrize("block", [block for block in of("") if not block.is_command], ids=str)
def test_what_is_printed_is_held_by_a_test(block: Block) -> None:
    (by,) = [test for beginning, test in PRINTED.items() if " ".join(block.text.split()).startswith(beginning)]
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


@pytest.mark.slow
def test_the_readmes_status_tells_what_is_to_do(newcomer: Path) -> None:
    assert "9 to do" in typed(newcomer, "snakemake status --profile profiles/local --configfile mine.yaml")


# Strategies that no config here has, a file that a reader has, and a report of results that are not there.
NO_DRY_RUN = re.compile("^snakemake (fsdp|tensor_parallel)$|my/cluster.yaml|--report")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_call_of_snakemake_is_understood_as_a_dry_run(newcomer: Path) -> None:
    called = {" ".join(words) for block in BLOCKS for words in block.commands if words[0] == "snakemake"}
    assert len(called) > 10
    for command in sorted(called):
        if not NO_DRY_RUN.search(command):
            typed(newcomer, command.replace("snakemake", "snakemake --dry-run", 1))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_tutorial_word_for_word_on_this_machine(newcomer: Path) -> None:
    page = "docs/tutorial.md"
    compared = typed(newcomer, block(page, "snakemake --profile profiles/local").text)
    assert "Report: results/comparison.html" in compared
    assert block(page, "strategy", "setting").lines[1].split() == next(
        line.split() for line in compared.splitlines() if line.startswith("strategy")
    )
    told = masked(typed(newcomer, block(page, "snakemake ddp").text))
    assert told == masked(block(page, "ddp (2 procs").text)


# The virtual cluster

VIRTUAL = "docs/virtual-cluster.md"


@pytest.fixture
def virtual(newcomer: Path, slurm_folder: Path) -> Iterator[Callable[[str], str]]:
    """Types commands of the page, for a virtual cluster of the test's own; it ends as the page says."""
    require()
    folder = slurm_folder / "c"

    def type_there(text: str) -> str:
        own = re.sub(r"(?m)^(python scripts/virtual_cluster.py \w+)", rf"\1 --folder {folder}", text)
        printed = typed(newcomer, own.replace(str(virtual_cluster.FOLDER), str(folder)))
        return printed.replace(str(folder), str(virtual_cluster.FOLDER))

    yield type_there
    ended = type_there(block(VIRTUAL, "python scripts/virtual_cluster.py down").text)
    assert ended.startswith("The virtual cluster is down.")
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.slurm
def test_the_virtual_cluster_does_what_its_page_says(virtual: Callable[[str], str]) -> None:
    """But for the jobs, which the long test starts."""
    install, start = block(VIRTUAL, "apt-get").lines
    assert set(PACKAGES.values()) == {word for word in install.split()[2:] if word[0] != "-"}
    assert virtual(start) == block(VIRTUAL, "The virtual cluster is up").text
    look = block(VIRTUAL, "export SLURM_CONF").text
    assert masked(virtual(look)) == masked(block(VIRTUAL, "PARTITION").text)
    planned = virtual(look + block(VIRTUAL, "snakemake plan").lines[0])
    known = masked(block("docs/slurm.md", "expected start").lines[-1])[0].replace("cuda", "cpu")
    assert known in masked(planned)


@pytest.mark.slurm
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_comparison_on_the_virtual_cluster_word_for_word(virtual: Callable[[str], str]) -> None:
    commands = block(VIRTUAL, "snakemake plan").text
    assert commands == block("docs/tutorial.md", "snakemake plan", "--profile profiles/slurm").text
    virtual(block(VIRTUAL, "apt-get").lines[1])
    shell = block(VIRTUAL, "export SLURM_CONF").text
    compared = virtual(shell + commands)
    assert "Verdict: yes" in compared
    assert "Report: results/comparison.html" in compared
    virtual(shell + block(VIRTUAL, "scontrol").text)
