"""Lightning's Trainer as a chain: stopped, killed, damaged, and bit for bit as uncut."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import stacks

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "support" / "lightning_script.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the stack's and this one's packages, but for torchvision, which torchmetrics would import."""
    made = stacks.provide("lightning")
    folder = tmp_path_factory.mktemp("lightning")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    inside = folder / "lib" / version / "site-packages"
    inside.mkdir(parents=True)
    for packages in (Path(sysconfig.get_path("purelib")), made.parents[1] / "lib" / version / "site-packages"):
        for path in packages.iterdir():
            if "torchvision" not in path.name and path.suffix != ".pth" and not (inside / path.name).exists():
                (inside / path.name).symlink_to(path)
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    return folder / "bin" / "python"


def trained(
    python: Path,
    folder: Path,
    *given: str,
    ranks: int = 1,
    launched: bool = True,
    **options: str,
) -> tuple[int, str]:
    """The status of the script in this folder, and what it says. Not `launched`: the Trainer starts the ranks."""
    folder.mkdir(exist_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [python, *(torchrun if ranks > 1 and launched else []), str(SCRIPT), "model.pt", *given]
    own = {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1", "DEVICES": str(ranks), **options}
    done = subprocess.run(
        [python, "-m", "relay.chain", *command], cwd=folder, env=os.environ | own, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def newest(folder: Path) -> Path:
    """The folder of the newest checkpoint, sound or not."""
    return max((folder / "checkpoints").glob("step-*"), key=lambda place: int(place.name.partition("-")[2]))


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same bits of a trained model."""
    models = [torch.load(folder / "model.pt", weights_only=True) for folder in (one, other)]
    return models[0].keys() == models[1].keys() and all(
        torch.equal(models[0][name], models[1][name]) for name in models[0]
    )


@pytest.mark.long
def test_stopped_killed_and_damaged_it_ends_bit_for_bit(python: Path, tmp_path: Path) -> None:
    """No other test kills a Trainer: 24 steps in 3 epochs on two ranks, saved after each third."""
    ranks = 2
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    status, told = trained(python, uncut, ranks=ranks)
    assert status == 0, told
    status, told = trained(python, cut, "10", "SIGTERM", ranks=ranks)
    assert (status, newest(cut).name) == (75, "step-11"), told
    assert "stops after step 11, which is saved: SIGTERM" in told
    status, told = trained(python, cut, "13", "SIGKILL", ranks=ranks)
    assert status not in (0, 75), told
    assert "goes on from step 11" in told
    status, told = trained(python, cut, "18", "SIGUSR1", ranks=ranks)
    assert (status, newest(cut).name) == (75, "step-19"), told
    assert "goes on from step 12" in told
    checkpoint = newest(cut) / "trainer.ckpt"
    checkpoint.write_bytes(bytes(checkpoint.stat().st_size))
    status, told = trained(python, cut, ranks=ranks)
    assert status == 0, told
    assert "the checkpoint of step 19 is passed over" in told
    assert "goes on from step 18" in told
    assert same(uncut, cut)
    # Killed after its last step was saved: whoever measures learns that none is left.
    status, told = trained(python, cut, ranks=ranks, RELAY_CHAIN_REPORT=str(cut / "report"))
    assert (status, (cut / "report").read_text()) == (0, "resumed 24\n"), told
    assert same(uncut, cut)


@pytest.mark.slow
def test_gathered_gradients_other_validations_and_workers(python: Path, tmp_path: Path) -> None:
    options = {"GATHER": "2", "VALIDATE": "0.5", "WORKERS": "2", "PLAIN": "1"}
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    assert trained(python, uncut, **options)[0] == 0
    status, told = trained(python, cut, "18", "SIGINT", **options)
    assert status == 75, told
    status, told = trained(python, cut, **options)
    assert status == 0, told
    assert same(uncut, cut)
