"""Each case in which a job has not done its work, and whether it is tried again."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chain_runs import Bench, Chain
from relay.base import ending, lock
from relay.base.errors import UserError
from relay.base.files import read_json, write_json
from relay.chain.sealed import MANIFEST
from relay.driver.retries import Retries
from relay.driver.submission import REFUSED
from relay.driver.terminal import SEGMENT
from relay.launch.launcher import KILLED
from relay.process.system import memory_kills
from relay.run_folder import faults, run_chain
from relay.run_folder.attempts import record, record_begin
from relay.run_folder.known_faults import look_up
from relay.run_folder.try_again import SAVING_ATTEMPTS, Case, Tried, given_up
from relay.training import job as training_job
from relay.training.job import Places

AGAIN = None
CASES: list[tuple[Case, dict[str, Any], str | None]] = [
    (Case.FAULT, {"retries": 9}, ""),
    (Case.HANG, {}, ""),
    (Case.HANG, {"came_further": True}, AGAIN),
    (Case.FOR_MEMORY, {}, AGAIN),
    (Case.FOR_MEMORY, {"memory_spent": "no node has more"}, "no node has more"),
    (Case.HARDWARE, {}, AGAIN),
    (Case.HARDWARE, {"node_without_other": "c1"}, "no other node than c1 can take it"),
    (Case.UNKNOWN, {"number": 2, "retries": 2}, AGAIN),
    (Case.UNKNOWN, {"number": 3, "retries": 2}, ""),
    (Case.DEADLINE, {"number": 99, "retries": 2, "fruitless": 0}, AGAIN),
    (Case.UNKNOWN, {"fruitless": 1, "step": 8}, AGAIN),
    (Case.UNKNOWN, {"fruitless": 2, "step": 8}, "2 attempts in a row came no further than step 8"),
    (Case.UNKNOWN, {"fruitless": 9, "step": 8, "held": True}, AGAIN),
    (Case.UNKNOWN, {"fruitless": 10, "step": 8, "held": True}, "10 attempts in a row came no further than step 8"),
]


@pytest.mark.parametrize(("case", "tried", "why"), CASES)
def test_a_job_is_tried_again_as_the_table_says(case: Case, tried: dict[str, Any], why: str | None) -> None:
    assert given_up(case, Tried(**tried)) == why


# A failed training is tried again as long as it comes further


def attempts(count: int) -> list[SimpleNamespace]:
    """Of one job, which trains a segment of run-1 and has failed."""
    rule = SimpleNamespace(name=SEGMENT, restart_times=2)
    of_run = {"wildcards": SimpleNamespace(run="run-1"), "params": SimpleNamespace(first=0), "log": [], "message": ""}
    return [SimpleNamespace(jobid=1, attempt=attempt, rule=rule, **of_run) for attempt in range(1, count + 1)]


def test_a_run_that_has_come_far_is_given_up_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two attempts it comes no further than the attempt before them, which was far beyond the job's first step."""
    checkpoint = tmp_path / "results/checkpoints/run-1/step-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).write_text("{}")
    monkeypatch.chdir(tmp_path)
    retries, jobs = Retries(), attempts(5)
    assert [retries.times(job) >= job.attempt for job in jobs[:2]] == [True, False]
    retries = Retries()
    for job in jobs:  # more than the retries of its rule: it comes further each time
        checkpoint = checkpoint.rename(checkpoint.with_name(f"step-{20 + job.attempt}"))
        assert retries.times(job) >= job.attempt


def test_a_run_whose_processes_still_save_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed job has left holds the run: each further attempt waits for it, and goes on from what it saves."""
    monkeypatch.chdir(tmp_path)
    retries, jobs = Retries(), attempts(SAVING_ATTEMPTS)
    with lock.exclusive(tmp_path / "results/checkpoints/run-1"):
        assert [retries.times(job) >= job.attempt for job in jobs] == [*[True] * (SAVING_ATTEMPTS - 1), False]


# A job that is killed for memory is tried once with more, and the user is told


def test_words_that_say_so() -> None:
    for text in (
        "SLURM-job '7' failed, SLURM status is: 'OUT_OF_MEMORY'. ",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=2.0. Some of your processes may have been killed",
        KILLED.format(count=1),
    ):
        assert look_up(f"a line\n{text}\nanother\n", "logs")
    for text in ("torch.OutOfMemoryError: CUDA out of memory. Tried 2.00 GiB", "srun: error: c1: task 0: Killed"):
        assert look_up(text, "logs") is None


def test_the_kernels_count(tmp_path: Path) -> None:
    for group, file in (("0::", "job/step/memory.events"), ("9:memory:", "memory/job/step/memory.oom_control")):
        (tmp_path / "cgroup").write_text(f"3:cpu:/elsewhere\n{group}/job/step\n")
        assert memory_kills(tmp_path / "cgroup", tmp_path) is None
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
        assert memory_kills(tmp_path / "cgroup", tmp_path) == 2


def killed(retries: Retries, attempt: int, had_mb: int, why: str = "Exceeded job memory limit") -> bool:
    """Whether a gate's job that Slurm has killed, by default for memory, is tried again."""
    Path("gate.log").write_text(f"slurmstepd: error: {why}\n")
    rule = SimpleNamespace(name="gate", restart_times=2)
    of_job = {"log": ["gate.log"], "resources": {"mem_mb": had_mb, "runtime": 5}, "message": "Gate: is it the same?"}
    return retries.times(SimpleNamespace(jobid=1, attempt=attempt, rule=rule, **of_job)) >= attempt


def with_more(more_memory: Callable[[Any, int], int]) -> Retries:
    return Retries(requests=SimpleNamespace(more_memory=more_memory), specification_of=lambda job: job)  # type: ignore[arg-type]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the driver says, in a folder of its own."""
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    for name in ("info", "error"):
        monkeypatch.setattr(f"relay.driver.retries.logger.{name}", lines.append)
    return lines


def test_it_is_tried_once_with_more_and_then_given_up(said: list[str]) -> None:
    retries = with_more(lambda _, had_mb: 2 * had_mb)
    assert killed(retries, 1, 900)
    assert said[-1].endswith("killed for memory with 900 MB a node, asks for 1800 MB now; goes on with attempt 2")
    assert not killed(retries, 2, 1800)
    assert "killed for memory with 1800 MB a node\n  given up  twice in a row" in said[-1]
    assert "the same call tries with 3600 MB; or let it need less" in said[-1]


def test_where_no_node_has_more_it_is_given_up_at_once(said: list[str]) -> None:
    assert not killed(with_more(lambda _, had_mb: had_mb), 1, 16000)
    assert "given up  no node has more" in said[-1]
    assert "remedy    let it need less (a smaller batch, fewer data_workers" in said[-1]


def test_where_its_time_was_over_the_limit_is_named(said: list[str]) -> None:
    retries = Retries({1: "SLURM status is: 'TIMEOUT'. "})
    assert not killed(retries, 3, 900, "CANCELLED")
    assert "remedy    its time limit of 5 minutes was too short: raise runtime_minutes, then" in said[-1]


def test_what_slurm_refuses_is_not_submitted_again(said: list[str], tmp_path: Path) -> None:
    first, job = attempts(2)
    first.log = job.log = [tmp_path / "job.log"]
    retries = Retries(words := {1: "SLURM status is: 'NODE_FAIL'. "})
    ending.record(ending.Ending(ending.INTERRUPTED, "of the first attempt"), tmp_path / "job.log")
    assert retries.times(first) == 1
    words[1] = f"{REFUSED}Invalid qos specification"
    assert retries.times(job) == 0
    assert "what      Slurm refuses the job: Invalid qos specification\n  remedy    change what is asked" in said[-1]
    assert ending.read(tmp_path / "job.log").status == ending.FAULT  # for the report


# A job that Slurm itself starts again, as after a lost node, ends with the reason when it comes no further


@pytest.fixture
def chain(bench: Bench) -> Chain:
    return bench.chain("results")


@pytest.fixture
def started(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The attempts whose processes were started; each is killed with its node."""
    for name, value in {"SLURM_RESTART_COUNT": "0", "SLURM_JOB_ID": "17"}.items():
        monkeypatch.setenv(name, value)
    found: list[int] = []

    def launch(spec: Path, role: str, work: Path, arguments: list[str], code: Path) -> int:
        found.append(int(arguments[arguments.index("--attempt") + 1]))
        return -9

    monkeypatch.setattr(training_job, "launch", launch)
    return found


def run(chain: Chain, restarts: int = 0) -> int:
    os.environ["SLURM_RESTART_COUNT"] = str(restarts)  # Slurm does not set it in a job's first start
    return training_job.run_segment(Places(chain.results, chain.run.id), 0, 60, 1)


@pytest.mark.slow
def test_two_starts_without_progress_end_it_with_the_reason(
    chain: Chain, started: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [run(chain, restarts) for restarts in range(3)] == [75, 75, 1]
    assert started == [1, 2]
    told = "Slurm has started job 17 again and again: 2 attempts in a row came no further than step 0"
    assert told in capsys.readouterr().err
    assert len(read_json(chain.work / "chain.json")["attempts"]) == 2


@pytest.mark.slow
def test_an_attempt_in_which_a_node_failed_is_not_forgotten_though_the_first_had_nothing_left(
    chain: Chain, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(spec: Path, role: str, work: Path, arguments: list[str], code: Path) -> int:
        record_begin(work, 1, 4, [])
        record(work, 1, end=4, stopped=None)
        faults.record(work, UserError("of the second node"), 1)
        return 1

    monkeypatch.setattr(training_job, "launch", launch)
    write_json(chain.work / "step-4" / MANIFEST, {"step": 4, "files": {}})
    assert run(chain) == 1
    assert [each.number for each in run_chain.read(chain.work).attempts] == [1]  # type: ignore[union-attr]


@pytest.mark.slow
def test_with_progress_it_goes_on_without_a_count(chain: Chain, started: list[int]) -> None:
    for number in range(1, 7):
        assert run(chain, number - 1) == 75
        if number % 2:  # each second attempt comes further
            write_json(chain.work / f"step-{number}" / MANIFEST, {"step": number, "files": {}})
    assert started == list(range(1, 7))
