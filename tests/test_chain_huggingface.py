"""Hugging Face's Trainer as a chain: stopped, killed, and bit for bit as uncut."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

pytest_plugins = ["huggingface"]

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "support" / "huggingface_script.py"

# It installs packages of hundreds of megabytes.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def trained(huggingface: Path, folder: Path, *given: str, ranks: int = 1) -> tuple[int, str]:
    """The status of the script in this folder, and what it says."""
    folder.mkdir(exist_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [huggingface, *(torchrun if ranks > 1 else []), str(SCRIPT), "model.pt", *given]
    own = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [huggingface, "-m", "relay.chain", *command], cwd=folder, env=os.environ | own, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_stopped_and_killed_it_ends_bit_for_bit(huggingface: Path, tmp_path: Path) -> None:
    """No other test has Hugging Face's Trainer."""
    ranks = 2
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    status, told = trained(huggingface, uncut, ranks=ranks)
    assert status == 0, told
    steps = 24 // ranks
    status, told = trained(huggingface, cut, str(steps // 4 + 1), "SIGTERM", ranks=ranks)
    assert status == 75, told
    assert "which is saved: SIGTERM" in told
    status, told = trained(huggingface, cut, str(steps - 2), "SIGKILL", ranks=ranks)
    assert status not in (0, 75), told
    assert "goes on from step" in told
    (last,) = (max(cut.glob("checkpoints/checkpoint-*"), key=lambda place: int(place.name.partition("-")[2])),)
    (last / "manifest.json").unlink()  # as if it had been killed while it was written
    status, told = trained(huggingface, cut, ranks=ranks)
    assert status == 0, told
    assert f"the checkpoint of step {last.name.partition('-')[2]} is passed over" in told
    one, other = (torch.load(folder / "model.pt", weights_only=True) for folder in (uncut, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
