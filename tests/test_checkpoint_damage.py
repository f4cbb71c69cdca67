"""Damaged checkpoints: complete or absent, and passed over with a warning."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checkpointed import Training, filled, names
from relay.base.errors import UserError
from relay.run_folder import sealed
from relay.run_folder.sealed import MANIFEST, seal
from relay.training.checkpoint import Checkpoints

pytest_plugins = ["chain_runs", "checkpointed"]


def truncate(place: Path) -> None:
    path = largest(place)
    path.write_bytes(path.read_bytes()[:-1])


def change_a_byte(place: Path) -> None:
    path = largest(place)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove_a_file(place: Path) -> None:
    (place / "rng-0.pt").unlink()


def cut_the_manifest(place: Path) -> None:
    (place / MANIFEST).write_text((place / MANIFEST).read_text()[:40])


def make_the_manifest_something_else(place: Path) -> None:
    (place / MANIFEST).write_text('["step", 8]')


def largest(place: Path) -> Path:
    return max((p for p in place.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


DAMAGES = [
    (change_a_byte, "does not have the checksum"),
    (remove_a_file, "rng-0.pt is missing"),
    (cut_the_manifest, f"{MANIFEST} cannot be read"),
    (make_the_manifest_something_else, f"{MANIFEST} cannot be read"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "told"), DAMAGES)
def test_a_damaged_newest_one_falls_back_to_the_one_before(
    checkpoints: Checkpoints,
    training: Training,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    told: str,
) -> None:
    """With a warning that names it; and it is replaced by the next save, not kept in place of a sound one."""
    filled(checkpoints, training, 4)
    expected = training.state()
    filled(checkpoints, training, 8)
    harm(checkpoints.directory / "step-8")
    assert checkpoints.resume(training.strategy, 0, 100) == 4
    assert all(torch.equal(value, expected[name]) for name, value in training.state().items())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: checkpoint of step 8 is passed over: ")
    assert told in line
    training.step = 4
    filled(checkpoints, training, 6)
    assert names(checkpoints) == ["step-4", "step-6"]


def test_a_part_that_a_network_filesystem_shows_late_is_waited_for(tmp_path: Path) -> None:
    """A manifest without it would call the checkpoint sound."""
    (tmp_path / "rng-0.pt").write_text("mine")
    late = threading.Timer(1.0, lambda: (tmp_path / "rng-1.pt").write_text("another node's"))
    late.start()
    seal(tmp_path, 5, 2, {"rng-0.pt", "rng-1.pt"})
    assert set(json.loads((tmp_path / MANIFEST).read_text())["files"]) == {"rng-0.pt", "rng-1.pt"}
    late.join()


def test_a_part_that_never_comes_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "SHOWN_WITHIN_SECONDS", 0.1)
    with pytest.raises(FileNotFoundError, match="another node has written it"):
        seal(tmp_path, 5, 2, {"rng-1.pt"})
    assert not (tmp_path / MANIFEST).exists()


def test_all_damaged_is_an_error_and_no_fresh_start(
    checkpoints: Checkpoints, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(checkpoints, training, 4, 8)
    for step in (4, 8):
        truncate(checkpoints.directory / f"step-{step}")
    with pytest.raises(UserError, match=r"run run-1: no sound checkpoint for .*; delete results/runs/run-1"):
        checkpoints.resume(training.strategy, 0, 100)
    assert capsys.readouterr().out.count("warning: checkpoint of step") == 2
