"""A disk that is full, read-only or gone: the reason comes first, and is told in one line."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain_runs import Bench, finish, wait_until
from local_driver import LocalDriver
from relay.base import ending
from relay.base.ending import FREE_SPACE, LOG
from relay.run_folder import faults
from small_disks import Mount, fill, mounts, small


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts for real; skips the test where that is not allowed."""
    with mounts() as make:
        yield make


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_ends_the_run_with_the_reason(bench: Bench, mount: Mount, log: Path) -> None:
    """The retry only repeats it, what was half written is removed, and with room the same call goes on."""
    chain = bench.chain("results", **bench.strategy("slow", "time.sleep(0.01)"))
    small(chain.results / "checkpoints", mount, 400)
    ended = chain.forked()
    assert ended.status == 1
    told = ending.read(log)
    assert told.what.startswith("run run-1 failed: RuntimeError: the checkpoint of step ")
    assert "No space left on device" in told.what
    assert told.remedy == FREE_SPACE
    assert list(chain.work.glob(".partial-*")) == []
    assert "failed before, not tried again" in chain.forked(attempt=2).errors
    mount(chain.results / "checkpoints", "-o", "remount,size=50m")
    ended = chain.forked()
    assert ended.status == 0, ended.errors


@pytest.mark.slow
def test_a_folder_that_vanishes_is_an_error_and_no_fresh_start(bench: Bench, log: Path) -> None:
    """In the middle of the training; and then for every further call, until the user says so."""
    chain = bench.chain("results", total_steps=400, **bench.strategy("slow", "time.sleep(0.05)"))
    job = chain.begin()
    wait_until(chain.checkpoints, job)
    while chain.work.exists():  # what the job writes meanwhile keeps the folder
        shutil.rmtree(chain.work, ignore_errors=True)
    ended = finish(job)
    assert ended.status == 1
    # While it is being removed, a folder within it may be missed first.
    told = rf"{re.escape(str(chain.work))}\S* is gone: it was removed, or its disk unmounted"
    assert re.search(told, ended.errors.splitlines()[-1]), ended.errors
    assert chain.checkpoints() == []
    assert "is gone" in chain.forked(attempt=2).errors


# Without processes


def test_a_full_disk_is_the_reason(tmp_path: Path, mount: Mount, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No process can record its own there. With room, nothing of it is left."""
    work = tmp_path / "small" / "run-1"
    small(work.parent, mount, 200)
    faults.forget(work)
    work.mkdir()
    filler = fill(work.parent)
    try:
        raise ArithmeticError("as planted " + "x" * 8000)
    except ArithmeticError as error:
        faults.record(work, error)
    assert "-0.json: cannot be written: No space left on device" in capsys.readouterr().err
    assert faults.concluded(work, "run run-1", 1) == 1
    told = ending.Ending(1, f"run run-1 failed: {work}: No space left on device", FREE_SPACE)
    assert ending.read(log) == told
    assert list(work.iterdir()) == []
    filler.unlink()
    assert faults.concluded(work, "run run-1", 1) == ending.INTERRUPTED  # its processes ended without a word
    assert faults.recorded(work) is None


def test_where_the_folder_is_gone_with_all_that_was_left_there_the_job_says_so(tmp_path: Path, log: Path) -> None:
    """A retry would only find it gone as well. Under load, what the processes recorded is removed with the rest."""
    assert faults.concluded(tmp_path / "gone" / "run-1", "run run-1", 1) == 1
    told = ending.read(log)
    assert told.what.startswith(f"run run-1 failed: {tmp_path / 'gone'} is gone: it was removed, or its disk unmounted")


def test_an_ending_that_cannot_be_written_is_a_line_in_the_log(tmp_path: Path, mount, monkeypatch, capsys) -> None:
    """The driver then looks at the disk itself."""
    small(tmp_path / "full", mount, 40)
    fill(tmp_path / "full")
    monkeypatch.setenv(LOG, str(tmp_path / "full" / "job.log"))
    assert ending.fault("as planted", "mend it") == 1
    told = capsys.readouterr().err
    assert "job.ending.json: cannot be written: No space left on device" in told
    assert told.endswith("remedy: mend it\nas planted\n")


# A folder that takes no writing, from the start or midway: the call ends with one line, and no traceback.


@pytest.mark.slow
def test_a_call_on_a_full_disk_ends_with_one_line(tmp_path: Path, mount: Mount) -> None:
    """With 400 KB it is full only when the first jobs are under way."""
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
    for other in ("Traceback", "Logging error", "no run of this call can be used"):
        assert other not in printed
    told = "No space left on device; delete what you no longer need there, or raise your quota"
    line = f"error: {folder}: {told}, then start the same call again"
    assert [each for each in printed.splitlines() if each.startswith("error: /")] == [line]
    assert printed.splitlines()[-1] == line
