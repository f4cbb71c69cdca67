"""Two jobs that freeze the same code at once: the later leaves alone what the earlier runs already."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.run_folder import snapshot


@pytest.mark.slow
def test_the_snapshot_of_a_job_that_was_quicker_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quicker: list[tuple[Path, int]] = []
    write_through = snapshot.sync

    def sync_file(path: Path) -> None:
        write_through(path)
        if not quicker:  # in the middle of the slower job's writing
            quicker.append((tmp_path, 0))
            frozen = snapshot.freeze(None, folder=tmp_path)
            quicker[0] = (frozen, frozen.stat().st_ino)

    monkeypatch.setattr(snapshot, "sync", sync_file)
    # Both have the same process number here, and so the same place to write to: another job has another.
    names = iter(("slower", "quicker"))
    monkeypatch.setattr(snapshot.os, "getpid", lambda: next(names))
    frozen = snapshot.freeze(None, folder=tmp_path)
    assert quicker == [(frozen, frozen.stat().st_ino)]
    assert [path.name for path in tmp_path.iterdir()] == [frozen.name]
