"""The executor for Slurm (`workflow/plugins`): it submits each job once, in order, and waits for it to its end."""

import asyncio
import collections
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as base
import snakemake_executor_plugin_torch_relay as plugin
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.settings import SharedFSUsage
from snakemake_scheduler_plugin_torch_relay import Scheduler, SchedulerSettings

from living import until
from relay.base.errors import NoNode, Unavailable, UserError
from relay.driver import submission
from relay.slurm import commands

FORGOTTEN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
DOWN = "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1"
LOST = "echo 'Socket timed out on send/recv operation' >&2; exit 1"
SAYS = "echo 'sbatch: error: {}' >&2; exit 1"
CLOSED = SAYS.format("Required partition not available (inactive or drain)")
PASSES = [
    CLOSED,
    SAYS.format("Batch job submission failed: Requested partition configuration not available now"),
    SAYS.format("Batch job submission failed: I/O error writing script/environment to file"),
    SAYS.format("fetch_config: DNS SRV lookup failed"),
]
FULL = "echo QOSMaxSubmitJobPerUserLimit: Job violates accounting/QOS policy '(job submit limit, …)' >&2; exit 1"


class Slurm:
    """A folder on PATH with a squeue, scontrol and sbatch that answer as a test wants it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.does("scontrol", "echo 'MinJobAge = 300 sec'")

    def does(self, command: str, script: str) -> None:
        path = self.folder / command
        path.write_text(f"#!/bin/sh\necho {command} >> {self.folder}/calls.txt\n{script}\n")
        path.chmod(0o755)

    def lists(self, *jobs: str, one: str = FORGOTTEN) -> None:
        """The queue: of each job its id, state, reason and comment; and the answer to the question for one job."""
        row = r"printf '%s\037relay\037%s\037/\037%s\037%s\037\n' {0} {1} {3} {2}; "
        rows = "".join(row.format(*job.split(), *"--") for job in jobs)
        self.does("squeue", f'case "$*" in *--jobs=*) {one};; esac; echo Welcome to c1; {rows}')

    def calls(self) -> list[str]:
        """The commands that were called since the last question."""
        path = self.folder / "calls.txt"
        path.touch()
        lines = path.read_text().split()
        path.unlink()
        return lines


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(submission, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(plugin, "BEAT_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    Path(".snakemake").mkdir()
    return Slurm(folder)


class Watched:
    """The executor, looking after one job, number 1, when it is told to; its own thread has ended."""

    def __init__(self, **changes: Any) -> None:
        self.happened: list[str] = []
        note = {name: (lambda *_, name=name: self.happened.append(name)) for name in ("success", "error", "submitted")}
        workflow = SimpleNamespace(
            dag=None,
            main_snakefile="/checkout/Snakefile",
            workdir_init=".",
            # As the profile sets them.
            executor_settings=plugin.ExecutorSettings(
                **{"no_requeue": True, "init_seconds_before_status_checks": 10, "jobname_prefix": "relay"} | changes
            ),
            executor_plugin=SimpleNamespace(common_settings=plugin.common_settings),
            remote_execution_settings=SimpleNamespace(
                max_status_checks_per_second=10,
                seconds_between_status_checks=10,  # where its thread has not looked yet
                jobname="{jobid}",
                jobscript=None,
                immediate_submit=False,
            ),
            storage_settings=SimpleNamespace(shared_fs_usage=[SharedFSUsage.SOURCES]),
            scheduler=SimpleNamespace(
                finish_callback=note["success"],
                error_callback=note["error"],
                _local_executor=SimpleNamespace(shutdown=lambda: self.happened.append("local rules ended")),
            ),
        )
        self.executor: Any = plugin.Executor(workflow, logging.getLogger("snakemake.logging"))
        self.executor.report_job_submission = note["submitted"]
        self.executor.wait = False
        self.executor.wait_thread.join()
        self.log = Path("slurm.log")
        self.log.touch()
        job = SimpleNamespace(log_error=lambda *_, **__: None, log_info=lambda: None)
        self.jobs = [SubmittedJobInfo(job, external_jobid="1", aux={"slurm_logfile": self.log})]

    def look(self) -> bool:
        """One look at the queue; whether the job is still waited for after it."""

        async def active() -> list[Any]:
            return [job async for job in self.executor.check_active_jobs(self.jobs)]

        self.jobs = asyncio.run(active())
        return bool(self.jobs)


def test_no_job_is_forgotten(slurm: Slurm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "another")  # a user's own defaults must not matter
    watched = Watched()
    assert "SQUEUE_PARTITION" not in os.environ
    slurm.does("squeue", "exit 1")
    assert [watched.look() for _ in range(6)] == [True] * 6
    assert watched.executor.next_seconds_between_status_checks == 70
    assert "Slurm has not answered for 0 s" in caplog.text
    slurm.lists("1 RUNNING None")
    assert watched.look()
    assert "Slurm answers again" in caplog.text
    slurm.lists("1 PENDING JobHeldUser")
    assert watched.look()
    assert "1 job does not start: PENDING (JobHeldUser)" in caplog.text
    slurm.lists("1 COMPLETED None")
    assert not watched.look()
    assert (watched.happened, watched.log.exists()) == (["success"], False)
    assert watched.executor.next_seconds_between_status_checks == 10


@pytest.mark.parametrize("state", ["PREEMPTED", "OUT_OF_MEMORY", "CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_a_job_that_fails_is_over_unless_slurm_starts_it_again(slurm: Slurm, state: str) -> None:
    slurm.lists(f"1 {state} None")
    watched = Watched()
    assert not watched.look()
    assert (watched.happened, watched.log.exists()) == (["error"], True)
    assert Watched(no_requeue=False).look() is (state == "PREEMPTED")
    assert Watched(no_requeue=False, requeue=True).look() is (state in ("PREEMPTED", "NODE_FAIL"))


def test_a_forgotten_job_is_over_after_two_looks_and_a_question(slurm: Slurm) -> None:
    watched = Watched()
    slurm.lists()
    assert watched.look()
    slurm.lists("1 RUNNING None")
    assert watched.look()  # it was a slip
    slurm.lists(one=DOWN)
    assert [watched.look() for _ in range(3)] == [True] * 3
    slurm.lists(one="echo 1 1 PENDING; exit")  # a site has given it another name
    assert watched.look()
    slurm.lists()
    assert not watched.look()
    assert watched.happened == ["error"]


def test_what_slurm_has_twice_is_cancelled_once(slurm: Slurm, caplog: pytest.LogCaptureFixture) -> None:
    """A job that it took after another was submitted, or that a site has queued again."""
    slurm.does("scancel", f'echo "$@" >> {slurm.folder}/cancelled.txt')
    another = "3 PENDING Priority rule_first_wildcards_1"
    slurm.lists("1 RUNNING None rule_first", "2 PENDING JobHeldUser rule_first", another, "4 FAILED None rule_first")
    watched = Watched()
    assert [watched.look() for _ in range(3)] == [True] * 3
    assert (slurm.folder / "cancelled.txt").read_text() == "2\n"
    assert "Job 2: is cancelled" in caplog.text
    assert "does not start" not in caplog.text
    slurm.lists("1 RUNNING None of_the_site", "5 PENDING Priority of_the_site")
    assert watched.look()
    assert (slurm.folder / "cancelled.txt").read_text() == "2\n"


def test_the_queue_is_looked_at_before_slurm_forgets(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.does("scontrol", "echo 'MinJobAge = 60 sec'")
    slurm.does("sacct", "exit 1")  # is there, and never asked
    slurm.lists("1 RUNNING None")
    watched = Watched()
    assert "the queue is looked at every 30 s" in capsys.readouterr().err
    assert [watched.look() for _ in range(4)] == [True] * 4
    assert watched.executor.next_seconds_between_status_checks == 30
    assert "sacct" not in slurm.calls()


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        "slurm_load_jobs error: Transport endpoint is not connected",
        "error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819",
        "slurm_load_jobs error: Protocol authentication error",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "squeue: error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Message receive failure",
        'error: munge_encode: Unable to access "/run/munge/munge.socket.2"',
    ],
)
def test_what_slurm_says_where_it_is_away_is_no_refusal(slurm: Slurm, text: str) -> None:
    slurm.does("squeue", f"echo '{text}' >&2; exit 1")
    with pytest.raises(Unavailable):
        commands.named("relay")


class Submitting(Watched):
    """The executor, which submits the job of this rule and partition when it is told to."""

    def __init__(self, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
        call = "sbatch --comment rule_first --output /logs/%j.log -p {}"

        def named(job: Any, *_: Any, **__: Any) -> str:
            return call.format(job.resources["slurm_partition"])

        monkeypatch.setattr(base, "get_submit_command", named)
        monkeypatch.setattr(base, "set_gres_string", lambda _: "")
        super().__init__()
        self.slurm, executor = slurm, self.executor
        executor.format_job_exec, executor.run_job_pre = lambda _: "true", lambda _: None
        executor.get_account_arg, executor.get_partition_arg = lambda _: iter([""]), lambda _: ""
        self.told: list[Any] = []
        executor.report_job_submission = lambda info: self.tell("submitted", info)
        executor.report_job_error = lambda info, msg: self.tell("error", msg)

    def tell(self, what: str, about: Any) -> None:
        self.happened.append(what)
        self.told.append(about)

    @staticmethod
    def job(partition: str = "cpu") -> Any:
        resources = collections.defaultdict(int, runtime=1, mem_mb=1, slurm_partition=partition)
        rule = SimpleNamespace(name="first")
        about = {"name": "first", "jobid": 1, "is_group": lambda: False, "rule": rule, "wildcards": [], "threads": 1}
        return SimpleNamespace(**about, resources=resources)

    def submit(self, script: str) -> tuple[list[str], int]:
        """What is reported with an sbatch that does so, and how often that is called."""
        self.slurm.does("sbatch", script)
        self.slurm.calls()
        self.happened.clear()
        self.executor.run_job(self.job())
        return self.happened, self.slurm.calls().count("sbatch")


@pytest.fixture
def submitting(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Submitting:
    return Submitting(slurm, monkeypatch)


def test_a_submission_waits_for_slurm(slurm: Slurm, submitting: Submitting, caplog: pytest.LogCaptureFixture) -> None:
    slurm.lists("5 RUNNING None")
    for refused in (DOWN, FULL, *PASSES):
        later = f'[ "$(grep -c sbatch {slurm.folder}/calls.txt)" -ge 4 ] || {{ {refused}; }}; echo 7'
        assert submitting.submit(later) == (["submitted"], 4)
    assert "the partition is inactive or drained (`sinfo`). The driver tries again" in caplog.text
    for words, told in (
        ("Invalid qos specification", "Slurm refuses the job: Invalid qos specification"),
        ("Switch resources are not there", "Slurm has not taken the job: Switch resources are not there"),
    ):
        assert submitting.submit(SAYS.format(f"Batch job submission failed: {words}")) == (["error"], 1)
        assert submitting.told[-1] == told
    submitting.executor.shutdown()
    assert submitting.happened[-1] == "local rules ended"
    for away in (DOWN, LOST, FULL):
        assert submitting.submit(away) == (["error"], 1)


def test_a_job_whose_answer_is_lost_is_looked_for_before_it_is_submitted_again(slurm, submitting: Submitting) -> None:
    slurm.lists("7 RUNNING None rule_other", "8 PENDING Priority rule_first")
    assert submitting.submit(LOST) == (["submitted"], 1)
    assert (submitting.told[-1].external_jobid, submitting.told[-1].aux["slurm_logfile"]) == ("8", Path("/logs/8.log"))
    # That one is known by now: this is another attempt. Job 7 was cancelled.
    submitting.executor._queue.doubles.add("7")
    slurm.lists("7 CANCELLED None rule_first", "8 FAILED None rule_first")
    once = f'[ "$(grep -c sbatch {slurm.folder}/calls.txt)" -ge 2 ] || {{ {LOST}; }}; echo 9'
    assert submitting.submit(once) == (["submitted"], 2)
    assert submitting.told[-1].external_jobid == "9"
    submitting.executor.workflow.executor_settings.pass_command_as_script = True
    submitting.executor.format_job_exec = lambda _: "echo it's --comment another"
    slurm.lists("10 PENDING Priority rule_first")
    assert submitting.submit(LOST) == (["submitted"], 1)
    assert submitting.told[-1].external_jobid == "10"
    assert submitting.submit("echo '11;mini'; echo 2 jobs wait") == (["submitted"], 1)  # a cluster has a name
    assert submitting.told[-1].external_jobid == "11"


def test_a_limit_that_no_job_of_ones_own_has_reached_is_an_error(slurm, submitting: Submitting, monkeypatch) -> None:
    slurm.lists("4 RUNNING None", "5 COMPLETED None")
    monkeypatch.setenv(commands.DRIVER_JOB, "4")  # of `relay drive job`
    monkeypatch.setattr(submission, "OWN_LIMIT_SECONDS", 0.2)
    assert submitting.submit(FULL)[0] == ["error"]
    assert submitting.told[-1].endswith("the limit may be 0 (`sacctmgr show assoc` and `show qos`)")
    assert submitting.submit(FULL) == (["error"], 1)  # of the next job at once
    slurm.lists("4 RUNNING None", "6 PENDING None")
    with pytest.raises(Unavailable):  # another job counts: it may pass
        commands.expected_start([])
    slurm.does("sbatch", CLOSED)
    with pytest.raises(NoNode, match="inactive or drain"):
        commands.expected_start([])
    slurm.does("sbatch", FULL)
    slurm.lists("4 RUNNING None", "5 COMPLETED None")
    with pytest.raises(UserError, match="QOSMaxSubmitJobPerUserLimit") as caught:
        commands.expected_start([])
    assert not isinstance(caught.value, Unavailable)
    monkeypatch.setenv("SLURM_JOB_ID", "4")  # of another job, whose environment a shell has: it may end
    monkeypatch.delenv(commands.DRIVER_JOB)
    assert commands.any_other()
    monkeypatch.setattr(os, "getppid", lambda: 2**30)  # of root, which /proc hides: it may be Slurm's
    assert commands.any_other()  # the job is over
    slurm.lists("4 RUNNING None", "5 COMPLETED None", one="echo 4 4 RUNNING")
    assert not commands.any_other()


def test_a_job_at_its_limit_holds_back_none_of_another_partition(slurm: Slurm, submitting: Submitting) -> None:
    slurm.lists("5 RUNNING None")
    executor, free = submitting.executor, slurm.folder / "free"
    slurm.does("sbatch", f'case "$*" in *"-p cpu"*) [ -e {free} ] || {{ {FULL}; }};; esac; echo $$')
    executor._submit_job(submitting.job("cpu"))
    executor._submit_job(submitting.job("gpu"))
    until(lambda: submitting.happened, "the second job is submitted")
    free.touch()
    until(lambda: len(submitting.happened) == 2, "the first job is submitted")
    assert submitting.happened == ["submitted"] * 2
    assert [info.job.resources["slurm_partition"] for info in submitting.told] == ["gpu", "cpu"]
    executor.shutdown()


def test_jobs_that_are_chosen_go_by_priority() -> None:
    jobs = [SimpleNamespace(priority=number, scheduler_resources={"_cores": 1}, input=[]) for number in (3, 9, 1, 7)]
    scheduler = Scheduler(SimpleNamespace(), SchedulerSettings(), logging.getLogger())
    chosen = scheduler.select_jobs(jobs, jobs, {"_cores": 10}, {})
    assert [job.priority for job in chosen] == [9, 7, 3, 1]


def test_jobs_start_the_workflow_that_they_were_handed(slurm: Slurm) -> None:
    executor = Watched().executor
    assert executor.get_snakefile() == "/checkout/Snakefile"
    copy = slurm.folder.parent / "results/code/call/Snakefile"
    copy.parent.mkdir(parents=True)
    copy.touch()
    assert executor.get_snakefile() == str(copy)
