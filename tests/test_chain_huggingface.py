"""Hugging Face's Trainer as a chain: stopped, killed, and bit for bit as uncut."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from pages import block

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "support" / "huggingface_script.py"
VERSIONS = ("transformers==5.23.0", "accelerate==1.15.0")

# It installs packages of hundreds of megabytes.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with transformers and this one's packages, but for torchvision, which the Trainer would import."""
    folder = tmp_path_factory.mktemp("huggingface")
    inside = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for number, options in enumerate(((), ("--no-deps",))):  # accelerate alone, for it would bring another torch
        wanted = ["install", "--quiet", *options, "--target", str(inside), VERSIONS[number]]
        done = subprocess.run([sys.executable, "-m", "pip", *wanted], capture_output=True, text=True)
        if "No matching distribution" in done.stderr:
            pytest.skip(f"the package index has no {VERSIONS[number]}")
        assert done.returncode == 0, done.stderr
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "torchvision" not in path.name and not (inside / path.name).exists():
            (inside / path.name).symlink_to(path)
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    made = folder / "bin" / "python"
    made.parent.mkdir(exist_ok=True)
    made.unlink(missing_ok=True)
    made.symlink_to(base)
    return made


def trained(python: Path, folder: Path, *given: str, ranks: int = 1) -> tuple[int, str]:
    """The status of the script in this folder, and what it says."""
    folder.mkdir(exist_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [python, *(torchrun if ranks > 1 else []), str(SCRIPT), "model.pt", *given]
    own = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, "-m", "relay.chain", *command], cwd=folder, env=os.environ | own, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_the_script_has_the_lines_of_the_page() -> None:
    lines = block("docs/make-your-script-a-chain.md", "trainer.train(").lines
    script = SCRIPT.read_text()
    assert [line for line in (lines[0], lines[2]) if line not in script] == []
    assert "callbacks=[chain" in script


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_and_killed_it_ends_bit_for_bit(python: Path, tmp_path: Path, ranks: int) -> None:
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    status, told = trained(python, uncut, ranks=ranks)
    assert status == 0, told
    steps = 24 // ranks
    status, told = trained(python, cut, str(steps // 4 + 1), "SIGTERM", ranks=ranks)
    assert status == 75, told
    assert "which is saved: SIGTERM" in told
    status, told = trained(python, cut, str(steps - 2), "SIGKILL", ranks=ranks)
    assert status not in (0, 75), told
    assert "goes on from step" in told
    (last,) = (max(cut.glob("checkpoints/checkpoint-*"), key=lambda place: int(place.name.partition("-")[2])),)
    (last / "manifest.json").unlink()  # as if it had been killed while it was written
    status, told = trained(python, cut, ranks=ranks)
    assert status == 0, told
    assert f"the checkpoint of step {last.name.partition('-')[2]} is passed over" in told
    one, other = (torch.load(folder / "model.pt", weights_only=True) for folder in (uncut, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
