"""The page of a model of one's own: its task runs, its card is the one shown, and templates run as they are."""

import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, blocks
from relay.card.look import Data, look
from relay.card.words import in_words
from relay.spec.tasks import Looked

PAGE = "docs/your-own-model.md"


def new(kind: str, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "main.py"
    return subprocess.run([sys.executable, script, "new", kind, name], cwd=folder, capture_output=True, text=True)


def looked(name: str, folder: Path) -> Looked:
    return look(name, f"{name}.py", {}, Data(datasets=folder / "datasets", prepare=True))


@pytest.mark.slow
def test_the_task_on_the_page_has_the_card_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = [block.text for block in blocks(PAGE) if block.language == "python"]
    (shown,) = [block.text for block in blocks(PAGE) if block.text.startswith("discs.py, with")]
    Path("discs.py").write_text(code)
    seen = looked("discs", tmp_path)
    assert in_words(seen) == shown.rstrip()


@pytest.mark.slow
def test_a_new_task_is_looked_at_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = new("task", "my_waves", tmp_path)
    assert made.returncode == 0, made.stderr
    assert "snakemake card --profile profiles/local --configfile my_waves.yaml" in made.stdout
    seen = looked("my_waves", tmp_path)
    assert (seen.warnings, seen.task.card.mean_difference, seen.task.card.random_samples) == ((), 0, True)
    assert "task: my_waves.py" in Path("my_waves.yaml").read_text()


@pytest.mark.parametrize(("kind", "there"), [("task", "mine.py"), ("strategy", "mine.yaml")])
def test_nothing_is_overwritten(kind: str, there: str, tmp_path: Path) -> None:
    (tmp_path / there).write_text("my work")
    made = new(kind, "mine", tmp_path)
    assert made.returncode == 1
    assert there in made.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "my work")]
