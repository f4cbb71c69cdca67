"""What is made of errors whose text alone says what happened: who is to blame, what helps, and whether to try again."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import yaml

from gate_runs import SCRIPTS, planned
from relay.base import ending, entry
from relay.base.ending import FAULT, FREE_SPACE, INTERRUPTED, Ending
from relay.base.errors import Busy, UserError
from relay.launch import launcher
from relay.run_folder import faults
from relay.run_folder.known_faults import look_up, text_of

pytestmark = pytest.mark.usefixtures("log")
MESSAGES = yaml.safe_load(Path(__file__).with_name("known_faults.yaml").read_text())
TYPES = {"DistBackendError": dist.DistBackendError, "OutOfMemoryError": torch.OutOfMemoryError}
# By kind: the job's exit status, and of what its last line has to speak.
ENDS = {
    "lost peer": (75, "ended without a word"),
    "hardware": (75, "on c1)"),
    **dict.fromkeys(("device", "busy"), (75, "failed")),
    **dict.fromkeys(("setup", "memory", "hang", None), (1, "failed")),
}


def error_of(message: dict[str, Any]) -> BaseException:
    """The error as Python has it; of a type that is not there, such as NVML's, one of that name."""
    made = TYPES.get(message["type"]) or type(message["type"], (RuntimeError,), {})
    return made(message["text"])


def left(work: Path, error: BaseException, rank: int = 0) -> None:
    """What the process of that rank leaves of an error that ends it."""
    try:
        raise error
    except type(error):
        faults.record(work, error, rank)


def ids(message: dict[str, Any]) -> str:
    return f"{message['kind']}: {message['source'].split('github.com/')[-1]}"


@pytest.mark.parametrize("message", MESSAGES, ids=ids)
def test_a_job_ends_as_its_fault_says(message, tmp_path: Path, monkeypatch, capsys) -> None:
    row = look_up(text_of(error_of(message)))
    assert (row and row.kind, row and row.name) == (message["kind"], message["name"])
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("SLURMD_NODENAME", "c1")
    left(tmp_path, error_of(message))
    status, words = ENDS[message["kind"]]
    assert faults.concluded(tmp_path, "run r", 1) == status
    told = ending.read(tmp_path / "job.log")
    assert words in told.what
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1] == told.what
    assert not told.remedy or f"remedy: {told.remedy}" in printed
    if message["kind"] not in ("lost peer", None):
        assert "the log has the traceback" not in told.remedy
        assert " ".join(message["text"].split()) in told.what
    assert told.node == ("c1" if message["kind"] == "hardware" else "")
    assert (faults.recorded(tmp_path) is None) == (status == 75)  # what is kept is not tried again


def test_the_first_rank_with_a_reason_counts_and_not_the_one_that_lost_it(tmp_path: Path) -> None:
    errors = {message["name"]: error_of(message) for message in MESSAGES}
    left(tmp_path, errors["lost peer"], 0)
    left(tmp_path, errors["one GPU for each rank"], 1)
    fault = faults.collect(tmp_path)
    assert fault.rank == 1
    assert "backend gloo" in fault.advice


@pytest.mark.parametrize(
    ("said", "status", "remedy"),
    [
        ("srun: error: Unable to create step for job 20: Memory required by task is not available", 1, "has less than"),
        ("srun: error: Invalid MPI type 'nope', --mpi=list for acceptable types", 1, "SLURM_MPI_TYPE"),
        ("slurmstepd-c1: error: execve(): /no/such: No such file or directory", 1, "a disk of all nodes"),
        ("slurmstepd-c1: error: execve(): /home/x/python: Stale file handle", 75, "a disk of that node"),
        # Word for word: https://github.com/aws/aws-parallelcluster/issues/4179
        (
            "srun: error: Task launch for StepId=20.0 failed on node c1: Socket timed out on send/recv operation",
            75,
            "if it comes again",
        ),
        # https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/225
        ("srun: error: Application launch failed: Unable to layout tasks on given cpus", 1, "has less than"),
        ("srun: error: c1: task 0: Out Of Memory", 75, ""),
        ("a program's own words on a launch that failed", 75, ""),
    ],
)
def test_a_launch_that_fails_is_told_in_slurms_words(said, status, remedy, tmp_path: Path, log: Path) -> None:
    log.write_text(f"srun: job 20 queued\n{said}\nsrun: error: c1: task 0: Exited with exit code 2\n")
    assert faults.concluded(tmp_path, "run r", 1) == status
    told = ending.read(log)
    assert remedy in told.remedy
    assert told.what.startswith(f"run r failed: {said}" if remedy else "run r: its processes ended without a word")
    assert (faults.recorded(tmp_path) is None) == (status == 75)


# How a job tells why it ended: the file beside its log, from which the driver decides about a retry


FULL = Path("/dev/full")


def fail(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (lambda: fail(UserError("epochs: 0 is not allowed")), Ending(FAULT, "epochs: 0 is not allowed")),
        (lambda: fail(Busy("another process trains")), Ending(INTERRUPTED, "another process trains")),
        (lambda: FULL.write_text("x"), Ending(FAULT, "error: [Errno 28] No space left on device", FREE_SPACE)),
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


def test_ctrl_c_is_no_error_of_a_command(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A terminal sends it to all that a driver has started on this machine."""
    with pytest.raises(SystemExit) as exit_:
        entry.run(Mock(side_effect=KeyboardInterrupt))
    assert (exit_.value.code, ending.read(log), *capfd.readouterr()) == (130, None, "", "")


def test_a_program_that_refuses_its_arguments_is_a_fault_of_a_gate_too(tmp_path: Path, monkeypatch, capfd) -> None:
    """`srun` and `apptainer` end with this status, and say why in the log."""
    gate, _ = planned("cpu")
    gate.write(tmp_path / "gate.json")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it where it has compiled something
    monkeypatch.setattr(launcher, "command", lambda *_: ["sh", "-c", "echo $TORCHINDUCTOR_CACHE_DIR; exit 2"])
    assert launcher.launch(tmp_path / "gate.json", "equivalence.gate", tmp_path, [], SCRIPTS) == 2
    # By torch's default another user could have made it first, with pickles in it.
    assert f"/relay-{os.getuid()}/inductor" in capfd.readouterr().out
    fault = faults.collect(tmp_path)
    assert fault.mistake
    assert "the launcher refuses its command line" in fault.error
