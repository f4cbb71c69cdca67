"""The pages of documentation: links lead somewhere, and each fenced command is run, or held against what it calls.

What a command prints is held against the page. `tests/support/pages.py` finds the blocks. A block that no test knows
fails here: give it a test, or a line below.
"""

import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
import yaml

from pages import ROOT, SHELL, Block, all_blocks, block, blocks, masked
from relay.config import config as configs
from snakemake_calls import called

BLOCKS = [*all_blocks()]
WRITTEN = ("mine.yaml", "discs.yaml")  # by the user, who follows the page
# Commands that no test runs as they stand there, and what holds them instead.
HELD_ELSEWHERE = {
    "apt-get": "it changes the system; `relay virtual-cluster up` names the same packages (below)",
    "scontrol update": "a command of Slurm itself",
    "cmake": "tests/test_libtorch.py builds with CMake",
    "build/relay_libtorch": "tests/test_libtorch.py runs the program",
    "pip install ~/torch-relay/scripts/relay/chain": "tests/test_relay_chain.py builds the wheel",
    "relay-chain sbatch": "tests/test_chain_sbatch.py submits such a script",
    "relay-chain": "tests/test_chain_sbatch.py submits a script with it",
    "RELAY/.venv/bin/snakemake": "tests/test_script_page.py types it; tests/test_script_slurm.py runs the target chain",
}


# Commands: what they call is there, and takes what they give it


@cache
def rules() -> set[str]:
    with TemporaryDirectory() as folder:  # what lies in the project's own results makes no difference
        status, listed = called(["--list-rules", "--snakefile", ROOT / "Snakefile", "--quiet"], Path(folder))
    assert status == 0, listed
    strategies = {path.stem for path in (ROOT / "scripts/relay/strategies").glob("[a-z]*.py")}
    return set(listed.split()) | strategies


def snakemake_takes(arguments: list[str]) -> None:
    from snakemake.cli import get_argument_parser  # which takes a second

    profile = [word for flag, word in pairwise(arguments) if flag == "--profile"]
    assert all((ROOT / each / "config.yaml").is_file() for each in profile), profile
    given = get_argument_parser([str(ROOT / each) for each in profile]).parse_args(arguments)
    assert set(given.targets) <= rules(), given.targets
    assert all(str(each) in WRITTEN or (ROOT / each).is_file() for each in given.configfile), given.configfile


@cache
def help_of(program: str, *command: str) -> str:
    printed, own = StringIO(), [str((ROOT / program).parent), *sys.path]
    with (
        mock.patch.multiple(sys, argv=[program, *command, "--help"], path=own),
        redirect_stdout(printed),
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_path(str(ROOT / program), run_name="__main__")
    assert not ended.value.code, [program, *command]
    return printed.getvalue()


def program_takes(program: tuple[str, ...], arguments: list[str]) -> None:
    if "--" in arguments:
        cut = arguments.index("--")
        snakemake_takes(arguments[cut + 1 :])
        arguments = arguments[:cut]
    text = help_of(*program)
    for word in arguments:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", text), f"{program} {word}"
        elif re.fullmatch("[a-z]+", word) and "{" in text:  # one of several acts
            assert re.search(rf"[{{,]{word}[,}}]", text), f"{program} {word}"


@pytest.mark.slow
def test_what_a_command_calls_is_there() -> None:
    for words in (words for each in BLOCKS if each.is_command for words in each.commands):
        match words:
            case ["snakemake", *arguments]:
                snakemake_takes(arguments)
            case ["python", program, *arguments]:
                program_takes((program,), arguments)
            case ["relay", command, *arguments]:
                program_takes(("scripts/main.py", command), arguments)
            case ["make", *arguments]:
                subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, check=True)
            case [word, *_] if word in SHELL:
                continue
            case _:
                assert any(" ".join(words).startswith(known) for known in HELD_ELSEWHERE), words


# What is printed, and files


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "yaml"], ids=str)
def test_a_config_on_a_page_is_one(block: Block) -> None:
    given = yaml.safe_load(block.text)
    if block.page == "docs/torch-versions.md":  # two keys of a site's file
        return
    given.pop("strategy_folders", None)
    configs.load(given)


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
    head = next(line for line in compared.splitlines() if line.startswith("strategy"))
    assert block(page, "strategy", "setting").lines[1].split() == head.split()
    told = masked(typed(newcomer, block(page, "snakemake ddp").text))
    assert told == masked(block(page, "ddp (2 procs").text)


# Links


PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("config", "config/sites", "results", "benchmarks")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere: no such file, or no such heading in it."""
    found = []
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(f"{page}: {path}" + (f"#{anchor}" if anchor else ""))
    return found


def test_every_link_leads_somewhere() -> None:
    assert [link for page in PAGES for link in broken(page)] == []
