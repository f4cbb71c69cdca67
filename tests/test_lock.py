"""The lock of a run's directory, and files that are complete or absent."""

import fcntl
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refusals import refusal
from relay.base.errors import Busy
from relay.base.lock import exclusive, wait_until_free
from relay.chain import files, sealed
from relay.chain.files import all_described
from relay.chain.sealed import MANIFEST, damage, publish, remove_leftovers, seal
from relay.driver.claim import LOCK, claim


def test_who_waited_for_a_directory_that_was_removed_holds_the_new_one(tmp_path: Path, monkeypatch) -> None:
    """Else it would hold a file that no longer has a name, and another process the one that has."""
    work = tmp_path / "work"
    real = fcntl.flock
    removed = []

    def flock(stream: Any, operation: int) -> None:
        if not removed:  # opened, and not locked yet: now another process, which holds it, starts the run again
            removed.append(shutil.rmtree(work))
        real(stream, operation)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.0)
    with exclusive(work):
        assert (work / "lock").exists()
        with pytest.raises(Busy):
            exclusive(work)


def test_who_waits_long_looks_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is a call to the file server, and hundreds of nodes may wait for one of them to make an environment."""
    pauses: list[float] = []
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
    with exclusive(tmp_path), pytest.raises(files.HeldError):
        files.exclusive(tmp_path, 3600.0)
    assert pauses[0] < 1
    assert len(pauses) < 800


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves no file empty that is taken for whole."""
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    (tmp_path / "part").write_text("written by a rank")
    seal(tmp_path, 1, all_described(tmp_path), {})
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "part", tmp_path / MANIFEST)} <= synced


@pytest.mark.parametrize("killed", ["rename", "remove"])
def test_a_kill_while_the_only_checkpoint_is_replaced_leaves_one(tmp_path: Path, monkeypatch, killed) -> None:
    place, partial = tmp_path / "step-3", tmp_path / ".partial-1-3"
    for folder in (place, partial):
        folder.mkdir()
        (folder / "part").write_text(folder.name)
        seal(folder, 3, all_described(folder), {})
    with monkeypatch.context() as patched:
        if killed == "rename":
            rename = Path.rename
            patched.setattr(Path, "rename", lambda self, to: 1 / 0 if self == partial else rename(self, to))
        else:
            patched.setattr(sealed, "remove", lambda path, **_: 1 / 0 if path.exists() else None)
        with pytest.raises(ZeroDivisionError):
            publish(partial, place)
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert (damage(place), (place / "part").read_text()) == (None, "step-3" if killed == "rename" else partial.name)


def test_no_lock_and_no_look_at_a_disk_follows_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may have laid it where the name is known: the file that it leads to would be emptied."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / LOCK).parent.mkdir()
    (tmp_path / LOCK).symlink_to(kept)
    assert "cannot be written" in refusal(claim, tmp_path)
    monkeypatch.setattr(files, "token_hex", lambda _: "known")
    (tmp_path / f".room-{os.getpid()}-known").symlink_to(kept)
    assert files.disk_refusal(tmp_path) is not None
    assert kept.read_text() == "mine"


def test_a_second_trainer_waits_and_then_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.chain.files.WAIT_SECONDS", 0.5)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    told = rf"{tmp_path}: another job already trains this run \(Slurm job 17 on .*; if .* delete {tmp_path}/lock"
    with exclusive(tmp_path):
        for attempt in (exclusive, wait_until_free):
            with pytest.raises(Busy, match=told):
                attempt(tmp_path)
    wait_until_free(tmp_path)
