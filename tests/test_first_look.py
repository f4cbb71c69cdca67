"""Mistakes on the command line are one line, before Snakemake reads the call; and what `relay` itself lists."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refusals import refusal
from relay.base import entry
from relay.commands import COMMANDS, start
from relay.driver import full_disk
from relay.driver.first_look import check, of_another_version, parsed
from relay.run_folder.results_folder import refuse_other
from relay.workflow import new_call

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "workflow" / "plugins"
HELP = "snakemake --help lists Snakemake's options"
FILES = {
    "tab.yaml": "epochs: 1\n\tseed: 2\n",
    "dashes.yaml": "---\n",
    "typo/config.yaml": "coers: 2\n",
    "mine.yaml": "epochs: 1\n",
    "Snakefile": "",
}
MISTAKES = {
    "--configfile tab.yaml": "tab.yaml: line 2, column 1: is no YAML: a tab stands here; indent with spaces",
    "--configfile dashes.yaml": "dashes.yaml: is empty; allowed: keys and values",
    "--configfile mine.yaml ddp": "--configfile: there is no file 'ddp'; a target has to stand before --configfile",
    "--config gate.steps=20": "--config: 'gate.steps' is not allowed as a name; allowed: 'gate={steps: 20}' for a key",
    "--touch": "--touch: is not allowed, because results are judged by what they hold; their times do not matter",
    "--archive x.tar.gz": "--archive: is not allowed, because it packs no results; pack the folder by tar",
    "--containerize": "--containerize: is not allowed, because environments are made from envs/*.txt",
    "--export-cwl x.cwl": "--export-cwl: is not allowed, because CWL has no chains of jobs",
    "--generate-unit-tests": "--generate-unit-tests: is not allowed, because `make test` runs this project's tests",
    "--target-jobs gate:gate=x": "--target-jobs: is not allowed, because the names in it are made by the plan",
    "--report x.html": "--report: is not allowed, because results/runs.csv is missing: nothing is compared yet",
    "--delete-all-output": "--delete-all-output: is not allowed, because it would leave half of each training; ",
    "--set-threads segment=x": "--set-threads: segment=x is not allowed; allowed: a whole number from 1 on",
    "--executor torch-relay --slurm-logdir x": "--slurm-logdir: is not allowed, because executor torch-relay has ",
    "--torch-relay-status-command sacct": "argument --torch-relay-status-command: invalid choice: 'sacct' ",
    "--executor slrm": "argument --executor/-e: invalid choice: 'slrm' (choose from",
    "--cofigfile mine.yaml": f"option --cofigfile is unknown; did you mean '--configfile'? {HELP}",
    "--profile typo": f"option --coers, which the profile gives, is unknown; did you mean '--cores'? {HELP}",
    "--profile locl": "--profile: 'locl' is no folder with a config.yaml; did you mean 'profiles/local'? allowed: ",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "profiles" / "local").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    return tmp_path


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(folder: Path, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert refusal(parsed, ["-n", *words.split()]).startswith(MISTAKES[words])
    assert capfd.readouterr().err == ""
    parsed(["-n", "--report", "x.html", "--report-after-run"])  # when there is something to report


def test_from_a_folder_of_ones_own_the_projects_files_are_named(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal(parsed, ["-n", "--profile", "profiles/slurm"])
    assert line.startswith("--profile: 'profiles/slurm' is no folder with a config.yaml; ")
    assert line.endswith(f"allowed: {ROOT}/profiles/slurm")
    line = refusal(parsed, ["-n"])
    assert line == f"--snakefile: is missing, and {tmp_path} has no Snakefile; give --snakefile {ROOT}/Snakefile"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "added"),
    [
        ("-n -- ddp", ["--logger=torch-relay"]),
        ("status", ["--logger=torch-relay", "--cores=1"]),
        ("-n ddp --logger torch-relay", []),
    ],
)
def test_a_call_has_the_logger(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, added: list[str]) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)  # which `check` sets
    monkeypatch.setattr(sys, "argv", ["snakemake", *words.split()])
    check(words.split())
    assert sys.argv == ["snakemake", *added, *words.split()]


@pytest.mark.slow
def test_snakemake_itself_shows_the_line_alone(folder: Path) -> None:
    ours = ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "tab.yaml"]
    line = f"error: {MISTAKES['--configfile tab.yaml']}\n"
    script = str(Path(sys.executable).with_name("snakemake"))
    command, environment = [script, "-n", *ours], os.environ | {"PYTHONPATH": str(PLUGINS)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, line)


def test_a_home_folder_that_takes_no_writing_is_one_line(folder: Path) -> None:
    """Snakemake keeps a cache there, and ends with its own traceback: a full quota is usual on clusters."""
    command = [sys.executable, "-m", "snakemake", "-n", "--snakefile", str(ROOT / "Snakefile")]
    (folder / "full").write_text("")
    told = os.environ | {"PYTHONPATH": str(PLUGINS), "HOME": str(folder / "full"), "XDG_CACHE_HOME": ""}
    done = subprocess.run(command, cwd=folder, env=told, capture_output=True, text=True, check=False)
    line = "Snakemake's cache cannot be written: Not a directory; free it or its quota, or name a folder of yours on"
    assert done.stderr == f"error: {folder}/full/.cache/snakemake: {line} another disk in XDG_CACHE_HOME\n"


@pytest.mark.usefixtures("open_umask")
def test_what_a_call_writes_is_its_users_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first files are there before it looks who may write to the folder of results."""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.setattr(sys, "argv", ["snakemake", "-n"])
    monkeypatch.setattr(full_disk, "no_cache", lambda: "cannot be written")  # and this call does not need it
    check(["-n", "--shared-fs-usage", "none"])
    assert os.umask(0) == 0o022


# The command line `relay`


MAIN = Path(__file__).resolve().parents[1] / "scripts" / "main.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_tells_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        start([command, "--help"])
    assert ended.value.code == 0
    printed, (module, what) = capsys.readouterr().out, COMMANDS[command]
    assert what[1:].split()[-1] in printed
    assert f"usage: relay {command} " in printed
    assert module != "jobs" or "--attempt ATTEMPT" in printed  # the base rule of jobs gives it


def test_all_commands_are_listed_without_importing_one_and_an_unknown_one_is_a_line(tmp_path: Path) -> None:
    """From a folder with a file that has a library's name: it is not imported."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    told = subprocess.run([sys.executable, "-X", "importtime", MAIN], cwd=tmp_path, capture_output=True, text=True)
    listed = [line.split()[0] for line in told.stdout.splitlines() if line.startswith("  ")]
    assert (told.returncode, sorted(listed)) == (0, sorted(COMMANDS))
    assert not [name for name in ("torch", "numpy", "snakemake", "relay.training") if f" {name}\n" in told.stderr]
    allowed = ", ".join(sorted(COMMANDS))
    for words, line in {
        "train_again": f"'train_again' is no command; did you mean 'train-again'? allowed: {allowed}",
        "export --run": "argument --run: expected one argument; `relay export --help` has all",
        # The words by which a command calls itself are not for users.
        "drive on": "argument {here,tmux,job}: invalid choice: 'on'; `relay drive --help` has all",
        "new net": "argument kind: invalid choice: 'net' (choose from ",
    }.items():
        command, *more = words.split()
        wrong = subprocess.run([sys.executable, MAIN, command, *more], capture_output=True, text=True)
        of = " " * bool(more) + command * bool(more)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert wrong.stderr.startswith(f"error: relay{of}: {line}")
        assert wrong.stderr.count("\n") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_another_user_has_closed_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a umask of 077 all results are."""
    (tmp_path / "results" / "runs").mkdir(parents=True)
    (tmp_path / "results").chmod(0o700)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    told = "error: results/runs: Permission denied; ask its owner, or work in a folder of your own"
    try:
        os.seteuid(65534)
        with pytest.raises(SystemExit, match=told), new_call._in_a_line():
            refuse_other(Path("results"))
        with pytest.raises(SystemExit, match=told):
            entry._status(lambda: Path("results/runs").stat().st_mode)
    finally:
        os.seteuid(0)


def test_a_checkout_whose_environment_has_the_plugins_of_another_version_is_told(tmp_path: Path) -> None:
    """Two of the same version may share one."""
    shutil.copytree(PLUGINS, tmp_path / "workflow" / "plugins")
    assert of_another_version(tmp_path) == ""
    with (tmp_path / "workflow/plugins/snakemake_executor_plugin_torch_relay/__init__.py").open("a") as changed:
        changed.write("# newer\n")
    line = f"{sys.prefix}: is installed for another version, in {ROOT}: run `make install` in {tmp_path}"
    assert of_another_version(tmp_path) == line
