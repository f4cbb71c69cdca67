"""A disk that is full, read-only or gone: the reason comes first, and is recorded where there is room."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from chain_runs import Bench, finish, wait_until
from relay.base import ending, room
from relay.base.ending import FREE_SPACE, LOG, READ_ONLY
from relay.base.errors import UserError
from relay.driver import retries
from relay.run_folder import faults
from small_disks import Mount, fill, mounts, small

pytest_plugins = ["chain_runs"]

FULL = "No space left on device"


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts for real; skips the test where that is not allowed."""
    with mounts() as make:
        yield make


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's log, and a home and a temporary folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(room.tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in ("home", "tmp", "logs"):
        (tmp_path / name).mkdir(mode=0o755)
    monkeypatch.setenv(LOG, str(tmp_path / "logs" / "job.log"))
    return tmp_path / "logs" / "job.log"


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_ends_the_run_with_the_reason(bench: Bench, mount: Mount, log: Path) -> None:
    """The retry only repeats it, what was half written is removed, and with room the same call goes on."""
    chain = bench.chain("results", **bench.strategy("slow", "time.sleep(0.01)"))
    small(chain.results / "checkpoints", mount, 400)
    ended = chain.forked()
    assert ended.status == 1
    told = ending.read(log)
    assert told is not None
    assert told.what.startswith("run run-1 failed: RuntimeError: the checkpoint of step ")
    assert FULL in told.what
    assert told.remedy == FREE_SPACE
    assert list(chain.work.glob("partial-*")) == []
    assert "failed before, not tried again" in chain.forked(attempt=2).errors
    mount(chain.results / "checkpoints", "-o", "remount,size=50m")
    ended = chain.forked()
    assert ended.status == 0, ended.errors


@pytest.mark.slow
def test_on_a_disk_without_any_room_the_reason_is_recorded_elsewhere(bench: Bench, mount: Mount, log: Path) -> None:
    """In the user's home, or the node's temporary folder; there the retry and the driver find it."""
    place = bench.folder / "results" / "checkpoints"
    strategy = bench.strategy("fills", "FILL() if self.steps == 3 else None", imports=FILLS.format(str(place)))
    chain = bench.chain("results", **strategy)
    small(place, mount, 8000)
    environment = {LOG: str(place / "job.log")}
    ended = chain.segment(**environment)
    assert ended.status == 1
    assert FULL in ended.errors.splitlines()[-1]
    told = ending.read(place / "job.log")
    assert told is not None
    assert (FULL in told.what, told.remedy) == (True, FREE_SPACE)
    assert "failed before, not tried again" in chain.segment(attempt=2, **environment).errors
    (place / "filler").unlink()
    (bench.folder / "made-room").touch()
    ended = chain.segment(**environment)
    assert ended.status == 0, ended.errors
    assert list((bench.folder / "home").rglob("*.json")) == []


FILLS = """\
def FILL():
    if os.path.exists({0!r} + "/../../made-room"):
        return
    with open({0!r} + "/filler", "wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
"""


@pytest.mark.slow
def test_a_read_only_disk_is_one_line_with_the_remedy(bench: Bench, mount: Mount, log: Path) -> None:
    chain = bench.chain("results")
    assert chain.forked(0, 20).status == 0
    place = chain.results / "checkpoints"
    mount(place, "--bind", str(place))
    mount(place, "-o", "remount,bind,ro")
    job = chain.begin(0, 40, **{LOG: str(log)})
    ended = finish(job)
    assert ended.status == 1
    (line,) = ended.errors.splitlines()
    assert line.startswith("error: [Errno 30] Read-only file system: ")
    told = ending.read(log)
    assert told is not None
    assert (told.what, told.remedy) == (line, READ_ONLY)
    subprocess.run(["umount", "--lazy", str(place)], check=True)
    assert chain.forked(0, 40).status == 0
    assert chain.started_at() == [0, 20]


@pytest.mark.slow
def test_a_folder_that_vanishes_is_an_error_and_no_fresh_start(bench: Bench, log: Path) -> None:
    """In the middle of the training; and then for every further call, until the user says so."""
    chain = bench.chain("results", total_steps=400, **bench.strategy("slow", "time.sleep(0.05)"))
    job = chain.begin()
    wait_until(chain.checkpoints, job)
    shutil.rmtree(chain.work, ignore_errors=True)
    ended = finish(job)
    assert ended.status == 1
    # While it is being removed, a folder within it may be missed first.
    told = rf"{re.escape(str(chain.work))}\S* is gone: it was removed, or its disk unmounted"
    assert re.search(told, ended.errors.splitlines()[-1])
    assert chain.checkpoints() == []
    assert "is gone" in chain.forked(attempt=2).errors
    with pytest.raises(UserError, match=r"do not belong to this chain, or are gone; put them back, or delete"):
        chain.forked()
    assert not list(chain.work.glob("step-*"))


# Without processes


def test_what_no_place_takes_is_said_on_stderr(
    tmp_path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path / "full", mount, 40)
    for name, variable in (("results", ""), ("home", "HOME"), ("tmp", "TMPDIR")):
        (tmp_path / "full" / name).mkdir()
        monkeypatch.setenv(variable or "UNUSED", str(tmp_path / "full" / name))
    monkeypatch.setattr(room.tempfile, "tempdir", str(tmp_path / "full" / "tmp"))
    fill(tmp_path / "full")
    assert room.write(tmp_path / "full" / "results" / "a.json", ["x" * 8000]) is None
    assert f"a.json: cannot be written: {FULL}" in capsys.readouterr().err


def test_another_users_folder_is_neither_written_nor_read(tmp_path: Path, log: Path) -> None:
    """A file there would be taken for what a job has said."""
    places = list(room.places(tmp_path / "results"))[1:]
    for place in places:
        place.mkdir(parents=True)
        (place / "a.json").write_text("{}")
        place.chmod(0o777)
    assert room.found(tmp_path / "results", "*.json") == []
    for place in places:
        place.chmod(0o700)
    assert len(room.found(tmp_path / "results", "*.json")) == 2
    room.forget(tmp_path / "results", "*.json")
    assert room.found(tmp_path / "results", "*.json") == []


def test_the_driver_says_what_is_wrong_with_the_disk(
    tmp_path: Path, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a job could not say it."""
    small(tmp_path / "results", mount, 4000)
    monkeypatch.setattr(retries, "RESULTS", tmp_path / "results")
    deciding, job = retries.Retries(Mock(said_of={})), Mock(jobid=1)
    assert deciding._told(job, None).status == ending.INTERRUPTED
    fill(tmp_path / "results")
    assert deciding._told(job, None).remedy == FREE_SPACE
    mount(tmp_path / "results", "-o", "remount,ro")
    assert deciding._told(job, None).remedy == READ_ONLY


def test_a_fault_on_a_full_disk_is_kept_at_home(tmp_path: Path, mount: Mount, log: Path) -> None:
    """The job finds it there, a retry too, and the next start clears it away."""
    work = tmp_path / "small" / "run-1"
    small(work.parent, mount, 40)
    faults.forget(work)
    work.mkdir()
    filler = fill(work.parent)
    try:
        raise ArithmeticError("as planted " + "x" * 8000)
    except ArithmeticError as error:
        faults.record(work, error)
    assert list(work.iterdir()) == []
    assert len(list((tmp_path / "home").rglob("fault-*.json"))) == 1
    assert faults.collect(work)
    assert "as planted" in (faults.recorded(work) or {"error": ""})["error"]
    assert [path.name for path in (tmp_path / "home").rglob("*.json")] == ["fault.json"]
    filler.unlink()
    faults.forget(work)
    assert faults.recorded(work) is None


def test_a_fault_is_recorded_once(tmp_path: Path, log: Path) -> None:
    """Where there is room, nothing goes anywhere else."""
    faults.forget(tmp_path / "work")
    try:
        raise OSError(28, FULL)
    except OSError as error:
        faults.record(tmp_path / "work", error)
    assert [path.parent for path in room.found(tmp_path / "work", "fault-*")] == [tmp_path / "work"]
    fault = faults.collect(tmp_path / "work")
    assert fault is not None
    assert faults.remedy(fault) == FREE_SPACE
    assert time.time() - fault["time"] < 60
