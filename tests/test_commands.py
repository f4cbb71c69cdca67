"""The command line `relay`: what it lists, and that each of its commands is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.base import entry
from relay.commands import COMMANDS, start
from relay.run_folder.results_folder import refuse_other
from relay.workflow import new_call

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
    wrong = subprocess.run([sys.executable, MAIN, "train_again"], capture_output=True, text=True)
    allowed = ", ".join(sorted(COMMANDS))
    line = f"error: relay: 'train_again' is no command; did you mean 'train-again'? allowed: {allowed}\n"
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (1, "", line)


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
