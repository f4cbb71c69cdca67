"""The command line `relay`: what it lists, and that each of its commands is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relay.commands import COMMANDS, start

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
