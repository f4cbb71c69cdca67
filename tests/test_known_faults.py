"""What is made of errors whose text alone says what happened: who is to blame, what helps, and whether to try again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml

from relay.base import ending
from relay.run_folder import faults
from relay.run_folder.known_faults import Kind, known, text_of

MESSAGES = yaml.safe_load(Path(__file__).with_name("known_faults.yaml").read_text())
TYPES = {"DistBackendError": dist.DistBackendError, "OutOfMemoryError": torch.OutOfMemoryError}
# By kind: the job's exit status, and of what its last line has to speak.
ENDS = {
    "lost peer": (75, "ended without a word"),
    "hardware": (75, "on c1)"),
    "device": (75, "failed"),
    "busy": (75, "failed"),
    "setup": (1, "failed"),
    "memory": (1, "failed"),
    "hang": (1, "failed"),
    None: (1, "failed"),
}


def error_of(message: dict[str, Any]) -> BaseException:
    """The error as Python has it; of a type that is not there, such as NVML's, one of that name."""
    made = TYPES.get(message["type"]) or type(message["type"], (RuntimeError,), {})
    error: BaseException = made(message["text"])
    return error


def left(work: Path, error: BaseException, rank: int = 0) -> None:
    """What the process of that rank leaves of an error that ends it."""
    try:
        raise error
    except type(error):
        faults.record(work, error, rank)


def ids(message: dict[str, Any]) -> str:
    return f"{message['kind']}: {message['source'].split('github.com/')[-1]}"


@pytest.mark.parametrize("message", MESSAGES, ids=ids)
def test_a_real_message_has_its_kind_and_its_remedy(message: dict[str, Any]) -> None:
    row = known(text_of(error_of(message)))
    assert (row and row.kind, row and row.name) == (message["kind"], message["name"])
    if row and row.kind != Kind.LOST_PEER:
        assert len(row.remedy) > 20


@pytest.mark.parametrize("message", MESSAGES, ids=ids)
def test_a_job_ends_as_its_fault_says(
    message: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("SLURMD_NODENAME", "c1")
    log = tmp_path / "job.log"
    monkeypatch.setenv(ending.LOG, str(log))
    left(tmp_path, error_of(message))
    status, words = ENDS[message["kind"]]
    assert faults.concluded(tmp_path, "run r", 1) == status
    told = ending.read(log)
    assert told is not None
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
    lost, duplicate = (
        next(m for m in MESSAGES if m["name"] == name) for name in ("lost peer", "one GPU for each rank")
    )
    left(tmp_path, error_of(lost), 0)
    left(tmp_path, error_of(duplicate), 1)
    fault = faults.collect(tmp_path)
    assert fault is not None
    assert fault["rank"] == 1
    assert "backend gloo" in faults.remedy(fault)
