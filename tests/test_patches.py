"""Each patch of Snakemake and its Slurm plugin, held against the installed version of them.

Every test first shows what the installed version does without the patch. Where that part fails, upstream has changed:
read the patch's description in `relay/driver/patches.py` again, and remove it if it is no longer needed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from relay.base.errors import Unavailable
from relay.driver import patches
from relay.slurm import commands

LOGGER = logging.getLogger("snakemake.logging")


class Slurm:
    """A folder on PATH with a squeue, scontrol and sacct that answer as a test wants it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.does("scontrol", "echo 'MinJobAge = 300 sec'")

    def does(self, command: str, script: str) -> None:
        path = self.folder / command
        path.write_text(f"#!/bin/sh\necho {command} >> {self.folder}/calls.txt\n{script}\n")
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """The commands that were called since the last question."""
        path = self.folder / "calls.txt"
        lines = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return Slurm(folder)


@pytest.fixture
def settings(slurm: Slurm) -> Any:
    """The executor's, as the profile sets them."""
    return plugin.ExecutorSettings(
        status_command="squeue", no_requeue=True, init_seconds_before_status_checks=10, jobname_prefix="relay"
    )


class Watched:
    """The plugin's executor, looking after one job, number 1."""

    def __init__(self, settings: Any) -> None:
        self.ended: list[str] = []
        callbacks = SimpleNamespace(
            finish_callback=lambda _: self.ended.append("success"), error_callback=lambda _: self.ended.append("error")
        )
        executor = object.__new__(plugin.Executor)
        executor.workflow = SimpleNamespace(executor_settings=settings, scheduler=callbacks, workdir_init=".")
        executor.logger, executor.status_rate_limiter = LOGGER, contextlib.nullcontext()
        executor.next_seconds_between_status_checks, executor.wait = 10, True
        executor.__post_init__()
        self.executor: Any = executor
        job = SimpleNamespace(log_error=lambda *_, **__: None)
        self.jobs = [SubmittedJobInfo(job, external_jobid="1", aux={})]

    def look(self) -> bool:
        """One look at the queue; whether the job is still waited for after it."""

        async def active() -> list[Any]:
            return [job async for job in self.executor.check_active_jobs(self.jobs)]

        self.jobs = asyncio.run(active())
        return bool(self.jobs)


def test_a_failed_look_at_the_queue_forgets_no_job(
    slurm: Slurm, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.does("squeue", "exit 1")
    assert not Watched(settings).look()
    monkeypatch.setenv("SQUEUE_PARTITION", "another")
    with patches.applied(settings):
        watched = Watched(settings)
        assert [watched.look() for _ in range(3)] == [True, True, True]
        slurm.does("squeue", "[ \"$SQUEUE_PARTITION\" ] || echo '1|RUNNING'")
        assert watched.look()
        slurm.does("squeue", "[ \"$SQUEUE_PARTITION\" ] || echo '1|COMPLETED'")
        watched.executor.workflow.executor_settings.keep_successful_logs = True
        assert not watched.look()
    assert watched.ended == ["success"]


def test_a_greeting_is_no_job(slurm: Slurm) -> None:
    row = "\\037".join(["7", "relay_a", "RUNNING", ".", "", "", ""])
    slurm.does("squeue", f"echo 'Welcome to c1'; printf '{row}\\n'")
    assert [job.id for job in commands.jobs_of(Path.cwd())] == ["7"]
    assert commands.waiting("relay_a") == []


@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        "slurm_load_jobs error: Transport endpoint is not connected",
        "error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819",
        "squeue: error: Unable to contact slurm controller (connect failure)",
        'error: munge_encode: Unable to access "/run/munge/munge.socket.2"',
    ],
)
def test_what_slurm_says_where_it_is_away_is_no_refusal(slurm: Slurm, text: str) -> None:
    slurm.does("squeue", f"echo '{text}' >&2; exit 1")
    with pytest.raises(Unavailable):
        commands.waiting("relay")


@pytest.mark.parametrize(
    ("squeue", "looks"),
    [
        ("echo '1|PREEMPTED'", [False]),
        ('case "$*" in *--jobs=*) echo "error: Invalid job id specified" >&2; exit 1;; esac', [True, False]),
    ],
    ids=["preempted", "forgotten"],
)
def test_a_preempted_or_forgotten_job_is_over(slurm: Slurm, settings: Any, squeue: str, looks: list[bool]) -> None:
    slurm.does("squeue", squeue)
    watched = Watched(settings)
    assert [watched.look() for _ in range(3)] == [True, True, True]
    with patches.applied(settings):
        watched = Watched(settings)
        assert [watched.look() for _ in looks] == looks
    assert watched.ended == ["error"]


def submitting(settings: Any) -> Watched:
    """An executor whose job is ready for `run_job`."""
    watched = Watched(settings)
    watched.executor.format_job_exec = lambda _: "true"
    watched.executor.get_account_arg = lambda _: iter([""])
    watched.executor.get_partition_arg = lambda _: ""
    watched.executor.report_job_submission = lambda _: watched.ended.append("submitted")
    job = watched.jobs[0].job
    job.name, job.jobid, job.is_group, job.rule = "first", 1, lambda: False, SimpleNamespace(name="first")
    job.wildcards, job.threads, job.resources = [], 1, collections.defaultdict(int, runtime=1, mem_mb=1)
    return watched


UNREACHED = "echo 'Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1"


def test_a_submission_waits_for_slurm(slurm: Slurm, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "get_submit_command", lambda *_, **__: "sbatch")
    monkeypatch.setattr(plugin, "set_gres_string", lambda _: "")
    monkeypatch.setattr(patches, "SUBMISSION_PAUSE_SECONDS", 0)
    down = f'[ "$(grep -c sbatch {slurm.folder}/calls.txt)" -ge 4 ] || {{ {UNREACHED}; }}; echo 7'

    def submit() -> tuple[list[str], list[str]]:
        watched = submitting(settings)
        slurm.calls()
        watched.executor.run_job(watched.jobs[0].job)
        return watched.ended, slurm.calls()

    slurm.does("sbatch", down)
    assert submit() == (["error"], ["sbatch"])
    with patches.applied(settings):
        assert submit() == (["submitted"], ["sbatch"] * 4)
        slurm.does("sbatch", "echo 'Socket timed out on send/recv operation' >&2; exit 1")
        assert submit() == (["error"], ["sbatch"])  # it may have been submitted
        slurm.does("sbatch", "echo 'Invalid account' >&2; exit 1")
        assert submit() == (["error"], ["sbatch"])


def test_jobs_start_the_workflow_that_they_were_handed(slurm: Slurm, settings: Any) -> None:
    executor = Watched(settings).executor
    executor.snakefile = "/checkout/Snakefile"
    with patches.applied(settings):
        assert executor.get_snakefile() == "/checkout/Snakefile"
        copy = slurm.folder.parent / "results/code/call/Snakefile"
        copy.parent.mkdir(parents=True)
        copy.touch()
        assert executor.get_snakefile() == str(copy)
    assert executor.get_snakefile() == "/checkout/Snakefile"


def test_a_version_that_does_not_fit_is_one_line(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plugin.query_job_status
    monkeypatch.delattr(plugin, "get_min_job_age")
    one_line = r"^error: .*get_min_job_age.*: this project was not tried with .*"
    with pytest.raises(SystemExit, match=one_line), patches.applied(settings):
        pass
    assert plugin.query_job_status is before
