"""How a job tells why it ended: the file beside its log, from which the driver decides about a retry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gate_runs import SCRIPTS, planned
from relay.base import ending, entry
from relay.base.ending import FAULT, FREE_SPACE, INTERRUPTED, Ending
from relay.base.errors import Busy, UserError
from relay.launch import launcher
from relay.run_folder import faults

pytest_plugins = ["chain_runs"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ending.LOG, str(tmp_path / "job.log"))
    monkeypatch.delenv("TORCH_RELAY_DRIVER", raising=False)
    return tmp_path / "job.log"


def fill_the_disk() -> int:
    with Path("/dev/full").open("w") as stream:
        stream.write("x")
    return 0


def fail(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (lambda: fail(UserError("epochs: 0 is not allowed")), Ending(FAULT, "epochs: 0 is not allowed")),
        (lambda: fail(Busy("another process trains")), Ending(INTERRUPTED, "another process trains")),
        (fill_the_disk, Ending(FAULT, "error: [Errno 28] No space left on device", FREE_SPACE)),
        (lambda: fail(KeyError("x")), Ending(FAULT, "KeyError: 'x'", "the log has the traceback")),
    ],
)
def test_what_a_job_leaves_beside_its_log(log: Path, main: object, expected: Ending) -> None:
    with pytest.raises(SystemExit) as exit_:
        entry.run(main)  # type: ignore[arg-type]
    assert exit_.value.code == expected.status
    assert ending.read(log) == expected


def test_a_job_begins_without_the_word_of_an_earlier_attempt(log: Path) -> None:
    ending.fault("of an earlier attempt")
    with pytest.raises(SystemExit):
        entry.run(lambda: 0)
    assert ending.read(log) is None


def test_a_program_that_refuses_its_arguments_is_a_fault_of_a_gate_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`srun` and `apptainer` end with this status, and say why in the log."""
    gate, _ = planned("cpu")
    gate.write(tmp_path / "gate.json")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it where it has compiled something
    monkeypatch.setattr(launcher, "command", lambda *_: ["sh", "-c", "echo $TORCHINDUCTOR_CACHE_DIR; exit 2"])
    assert launcher.launch(tmp_path / "gate.json", "equivalence.gate", tmp_path, [], SCRIPTS) == 2
    # By torch's default another user could have made it first, with pickles in it.
    assert f"/relay-{os.getuid()}/inductor" in capfd.readouterr().out
    fault = faults.collect(tmp_path)
    assert fault is not None
    assert fault["mistake"]
    assert "the launcher refuses its command line" in fault["error"]
