"""A hang of NCCL, which torch's watchdog ends by SIGABRT: told apart from processes that were killed, and named.

No NCCL is here. Flight Recorder's dumps are real ones, of gloo, which writes the same; the log's words are people's.
"""

import os
import pickle
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

import preloaded
from relay.base import ending
from relay.process.ranks import Ranks
from relay.run_folder import alive, faults, watchdog

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 60
# https://github.com/deepseek-ai/DeepSeek-MoE/issues/47, with another error of CUDA's in it
ECC = """\
[rank1]:[E410 01:50:33.889423318 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group \
watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7ef4bb3161b6 in libc10.so)
"""


Flights = dict[int, bytes]  # what ranks have left of a hang


def entries() -> list[dict[str, Any]]:
    """What Flight Recorder holds of this process's collectives."""
    dumped: dict[str, Any] = pickle.loads(_dump_fr_trace(includeStackTraces=False))
    return dumped["entries"]


def hang(ranks: Ranks, folder: str) -> None:
    """Both write what Flight Recorder has, as on NCCL, while rank 1 does not come to the third collective."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_SECONDS))
    for _ in range(2):
        dist.all_reduce(torch.ones(3), group=group)
    waiting = dist.all_reduce(torch.ones(7), group=group, async_op=True) if ranks.rank == 0 else None
    while sum(each["retired"] for each in entries()) < 2:
        time.sleep(0.01)  # a collective is noted as over a moment after its waiter goes on
    (Path(folder) / f"flight-{alive.attempt()}-2-{ranks.rank}").write_bytes(_dump_fr_trace(includeStackTraces=False))
    ranks.barrier()
    if waiting is None:
        dist.all_reduce(torch.ones(7), group=group)
    else:
        waiting.wait()


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    """What two ranks have left of a hang, by rank."""
    folder = tmp_path_factory.mktemp("hang")
    preloaded.spawned(hang, 2, str(folder))
    return {int(path.name[-1]): path.read_bytes() for path in sorted(folder.glob("flight-*"))}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder, in which an attempt has begun."""
    monkeypatch.setenv(ending.LOG, str(tmp_path / "job.log"))
    faults.forget(tmp_path)
    return tmp_path


def concluded(work: Path, status: int) -> tuple[int, Any]:
    """What the job makes of it: its exit status, and what it tells."""
    return faults.concluded(work, "run r", status), ending.read(work / "job.log")


def leave(work: Path, flights: dict[int, bytes], waited_seconds: float = TIMEOUT_SECONDS) -> None:
    """Let these be the dumps of this attempt, written after so long a time."""
    for rank, dump in flights.items():
        path = work / f"flight-{alive.attempt()}-2-{rank}"
        path.write_bytes(dump)
        os.utime(path, (time.time() + waited_seconds,) * 2)


def test_a_hang_is_named_and_not_tried_again(work: Path, flights: dict[int, bytes]) -> None:
    leave(work, flights)
    status, told = concluded(work, -6)
    assert status == ending.FAULT
    assert "rank 0 waited 60 s in gloo:all_reduce number 3 of group" in told.what
    assert "Float [7]; rank 1 had come to gloo:all_reduce number 2" in told.what
    assert "the log shows where each rank was" in told.remedy
    assert faults.begin(work, "run r", 2) == ending.FAULT


def test_ranks_that_wait_for_one_that_was_killed_hang_by_no_fault_of_theirs(work: Path, flights: Flights) -> None:
    leave(work, {0: flights[0]})
    status, told = concluded(work, -9)
    assert status == ending.INTERRUPTED
    assert "ended without a word (status -9): killed, a lost node, out of memory?" in told.what


def test_what_slurm_says_in_this_attempt_is_told(work: Path, log: Path) -> None:
    log.write_text("srun: error: Unable to create step: of an earlier attempt\n")
    faults.forget(work)
    with log.open("a") as stream:
        stream.write("srun: error: cannot change into x\nsrun: error: c1: task 0: Exited with exit code 1\n")
        stream.write("srun: error: c1: task 0: Killed\nsrun: error: c1: task 1: Terminated\n")
    status, told = concluded(work, 1)
    assert status == ending.INTERRUPTED
    assert told.what.endswith("without a word (status 1): Slurm says: srun: error: c1: task 0: Killed")


def test_a_dump_whose_collectives_were_not_over_their_time_is_no_hang(work: Path, flights: dict[int, bytes]) -> None:
    """A process also writes one where a peer, or its GPU, has failed."""
    leave(work, {1: flights[1]})
    assert watchdog.hang(watchdog.dumps(work)) is None
    leave(work, flights, waited_seconds=-60)
    assert watchdog.hang(watchdog.dumps(work)) is None


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def test_a_damaged_dump_is_left_out_and_runs_nothing(work: Path, flights: Flights, monkeypatch) -> None:
    monkeypatch.chdir(work)
    for damaged in (flights[0][:100], pickle.dumps({"entries": [Runs()]})):
        leave(work, {0: damaged, 1: flights[1]})
        assert set(watchdog.dumps(work)) == {1}
    assert not (work / "ran").exists()


def test_what_the_watchdog_said_is_the_fault_where_the_process_could_say_nothing(
    work: Path, monkeypatch: pytest.MonkeyPatch, flights: Flights
) -> None:
    """A GPU that fails is first seen by the watchdog, which ends the process. The job of one node knows the node.

    The other ranks waited for that one: this is no hang.
    """
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    monkeypatch.setenv("SLURMD_NODENAME", "g2")
    leave(work, flights)
    (work / "job.log").write_text(ECC)
    status, told = concluded(work, -6)
    assert (status, told.node) == (ending.INTERRUPTED, "g2")
    assert told.what == "run r failed: DistBackendError: CUDA error: uncorrectable ECC error encountered (rank 1 on g2)"
