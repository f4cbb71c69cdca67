"""A folder that takes no writing, from the start or midway: the call ends with one line, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_driver import LocalDriver
from relay.driver.full_disk import unwritable
from small_disks import fill, mounts, small

FULL = "No space left on device; delete what you no longer need there, or raise your quota"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with mounts() as mount:
        small(tmp_path / "full", mount, 300)
        assert unwritable(tmp_path / "full") == ""
        assert list((tmp_path / "full").iterdir()) == []
        fill(tmp_path / "full")
        assert unwritable(tmp_path / "full").startswith(f"{tmp_path}/full: {FULL}")


@pytest.mark.slow
def test_a_call_on_a_full_disk_ends_with_one_line(tmp_path: Path) -> None:
    """With 400 KB it is full only when the first jobs are under way."""
    with mounts() as mount:
        folder = tmp_path / "full"
        small(folder, mount, 3000)
        driver = LocalDriver(folder, {"epochs": 2, "comparisons": [{"strategy": "cpu"}]})
        (folder / "room").write_bytes(bytes(400 * 1024))
        fill(folder)
        (folder / "room").unlink()
        try:
            status, printed = driver.call("cpu")
        finally:
            driver.end()
    assert status == 1
    assert "Traceback" not in printed
    assert "Logging error" not in printed
    assert [line for line in printed.splitlines() if line.startswith("error: /")] == [
        f"error: {folder}: {FULL}, then start the same call again"
    ]
    assert "no run of this call can be used" not in printed
    assert printed.splitlines()[-1].startswith("error: /")
