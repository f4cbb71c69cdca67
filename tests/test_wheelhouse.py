"""Wheels for nodes without network: fetched by real pip, complete or absent, every hash checked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from living import until
from relay.base.errors import UserError
from relay.environments import wheelhouse
from tiny_stack import FETCH, ROOT, fetched, offline, project, python

pytest_plugins = ["tiny_stack"]


@pytest.mark.slow
def test_only_what_is_damaged_is_fetched_anew_and_no_stray_wheel_taken_up(tmp_path: Path, tiny: Path) -> None:
    mine = project(tmp_path / "project")
    place = fetched(mine, tmp_path, **offline(tiny))
    bad, good = sorted(place.glob("*.whl"))
    kept = good.stat().st_ino
    bad.write_bytes(bad.read_bytes()[:-1] + b"x")
    (place / "evil-1.0-py3-none-any.whl").write_bytes(b"evil")
    assert len(wheelhouse.damaged(place) or ()) == 1
    fetched(mine, tmp_path, **offline(tiny))
    assert wheelhouse.damaged(place) == []
    assert good.stat().st_ino == kept
    assert "evil" not in (place / "requirements.txt").read_text() + (place / "SHA256SUMS").read_text()


@pytest.mark.slow
def test_another_hash_than_the_locks_leaves_nothing(tmp_path: Path) -> None:
    mine = project(tmp_path / "project", spoil=True)
    with pytest.raises(UserError, match="could not be fetched: THESE PACKAGES DO NOT MATCH THE HASHES"):
        fetched(mine, tmp_path)
    assert os.listdir(tmp_path / wheelhouse.FOLDER) == ["fetching.lock"]  # noqa: PTH208


@pytest.mark.slow
def test_a_fetch_that_is_killed_leaves_no_wheelhouse(tmp_path: Path, tiny: Path) -> None:
    mine = project(tmp_path / "project")
    command = python(FETCH, mine)
    child = subprocess.Popen(**command, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        until(lambda: any((tmp_path / wheelhouse.FOLDER).glob(".tiny-*.partial")), "a part is there")
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert not list((tmp_path / wheelhouse.FOLDER).glob("tiny-*"))
    assert wheelhouse.damaged(fetched(mine, tmp_path, **offline(tiny))) == []
    assert not list((tmp_path / wheelhouse.FOLDER).glob(".tiny-*"))


def test_the_build_of_torch_decides_what_is_asked_for() -> None:
    cpu, cuda = (wheelhouse.order(ROOT, "torch", build) for build in ("cpu", "cuda"))
    assert re.findall(r"(?m)^torch\S+", cpu.requirements(["torch"])) == ["torch===2.13.0+cpu", "torchvision===0.28.0"]
    assert re.findall(r"(?m)^torch\S+", cuda.requirements(())) == ["torch===2.13.0", "torchvision===0.28.0"]
    assert "nvidia-nccl" in cuda.requirements(())
    assert "nvidia-nccl" not in cpu.requirements(())
    assert cpu.folder != cuda.folder
    with pytest.raises(UserError, match=r"'cu118' has no locked wheels; allowed: cpu, cuda"):
        wheelhouse.order(ROOT, "torch", "cu118")
    with pytest.raises(UserError, match=r"stack 'nothing': the lock .*nothing.txt is missing"):
        wheelhouse.order(ROOT, "nothing", "cpu")
