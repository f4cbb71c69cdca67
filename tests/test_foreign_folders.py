"""What lies in the folder from which one calls takes the place of no library, and is not run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chain_runs import Bench
from relay.commands.drive import snakemake
from relay.environments import pip

pytestmark = pytest.mark.slow

PLUGINS = Path(__file__).resolve().parents[1] / "workflow" / "plugins"
PLANTED = "open('ran', 'w')\n"


@pytest.mark.parametrize(("name", "program"), [("pip", pip.program(sys.executable)), ("random", snakemake([]))])
def test_a_file_beside_the_config_shadows_no_module(tmp_path: Path, name: str, program: list[str]) -> None:
    (tmp_path / f"{name}.py").write_text(PLANTED)
    subprocess.run([*program, "--version"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_users_folder_is_not_looked_at_by_its_own_code(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").touch()
    (tmp_path / "workflow" / "plugins" / "snakemake_logger_plugin_torch_relay").mkdir(parents=True)
    (tmp_path / "scripts" / "relay" / "driver").mkdir(parents=True)
    (tmp_path / "scripts" / "relay" / "driver" / "first_look.py").write_text(PLANTED + "check = print\n")
    os.chown(tmp_path, 65534, -1)
    program = [str(Path(sys.executable).with_name("snakemake")), "--version"]
    subprocess.run(program, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PLUGINS)}, check=True)
    assert not (tmp_path / "ran").exists()


GUARDED = """
import sys
sys.path.insert(0, {scripts!r})
from relay.driver import guard
if workflow.is_main_process:
    guard.guard(workflow, guard.Wants(), guard.Shows())
rule made:
    output: "made.txt"
    run: open(output[0], "w").write(str(sys.flags.safe_path))
"""


def test_nor_of_the_snakemake_that_a_job_starts(tmp_path: Path) -> None:
    """Rules with `run:` are a `python -m snakemake` of their own, and so are Slurm jobs: they inherit what it has."""
    (tmp_path / "random.py").write_text(PLANTED)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "Snakefile").write_text(GUARDED.format(scripts=str(PLUGINS.parents[1] / "scripts")))
    program = snakemake(["--snakefile", "code/Snakefile", "--cores", "1", "made"])
    done = subprocess.run(program, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "made.txt").read_text() == "True"


# Files of a user that have the name of a library are in no job's way

OWN = "raise SystemExit('the user's own file was imported')\n"


def test_a_job_imports_nothing_from_its_folder(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "sympy", "relay"):
        (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    ended = bench.chain("results", total_steps=2).segment()
    assert (ended.status, "the user's own" in ended.errors) == (0, False), ended.errors
