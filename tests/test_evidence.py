"""The evidence on the page: what a reader needs to check a figure, from the records themselves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from relay.run_folder import snapshot

pytest_plugins = ["results_tree"]


def test_a_snapshot_tells_the_commit_that_it_was_taken_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    package = tmp_path / "relay"
    package.mkdir()
    (package / "code.py").write_text("1\n")
    git("init", "--quiet")
    git("add", ".")
    git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "x")
    monkeypatch.setattr(snapshot, "PACKAGE", package)
    frozen = snapshot.freeze(None, folder=tmp_path / "results")
    told = json.loads((frozen / snapshot.COMMIT).read_text())
    assert told == {"commit": git("rev-parse", "HEAD"), "changed": False}
    assert snapshot.changed_since(frozen) is None
    (package / "code.py").write_text("2\n")
    assert (
        json.loads((snapshot.freeze(None, folder=tmp_path / "results") / snapshot.COMMIT).read_text())["changed"]
        is True
    )
