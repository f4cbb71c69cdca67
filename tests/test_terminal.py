"""What the terminal keeps of the Slurm executor's words, held against the installed version of it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin
from rich.text import Text
from snakemake.logging import logger
from snakemake_executor_plugin_slurm.partitions import get_default_partition
from snakemake_interface_logger_plugins.common import LogEvent

from relay.base.plain_text import plain_text
from relay.driver.terminal import STREAM, Terminal
from relay.driver.view import View


@pytest.fixture
def shown() -> Iterator[io.StringIO]:
    """What Snakemake's handler of the terminal prints."""
    handler = logging.StreamHandler(io.StringIO())
    handler.name = STREAM
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.stream
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The executor on a cluster without accounting, where Slurm is left the choice of a partition."""
    for command, script in {
        "sacct": "echo sacct: fatal: no accounting >&2; exit 1",
        "sinfo": "echo PARTITION",
        **dict.fromkeys(("sacctmgr", "sshare"), "true"),
    }.items():
        (tmp_path / command).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    made = object.__new__(plugin.Executor)
    made.logger, made._fallback_account_arg = logger, None
    return made


def ask(executor: Any, account: str | None = None) -> None:
    """The executor looks for a job's account and partition, as it does before it submits the job."""
    resources = SimpleNamespace(slurm_account=account, get=lambda _: account)
    next(executor.get_account_arg(SimpleNamespace(resources=resources)))
    get_default_partition("segment", logger)


def test_a_sites_file_is_named_where_the_executor_wants_its_own_options(shown: io.StringIO, executor: Any) -> None:
    ask(executor)
    before = shown.getvalue()
    assert "sacct: fatal" in before  # else the executor says it in other words now
    assert "--default-resources" in before
    executor._fallback_account_arg = None
    with Terminal(site="my/cluster.yaml").installed():
        ask(executor)
    assert shown.getvalue().removeprefix(before).splitlines() == [
        "account: the file of site 'my/cluster.yaml' names none, so Slurm takes yours (docs/sites.md)",
        "partition: the file of site 'my/cluster.yaml' names none, so Slurm takes its own (docs/sites.md)",
    ]


def test_an_account_that_nobody_can_check_is_no_news(shown: io.StringIO, executor: Any) -> None:
    ask(executor, "mine")
    assert "account 'mine'. Proceeding without account validation" in shown.getvalue()
    before = shown.getvalue()
    with Terminal(site="generic").installed():
        ask(executor, "mine")
    assert "account" not in shown.getvalue().removeprefix(before)


def test_something_may_be_done_after_each_job() -> None:
    done: list[tuple[int, int]] = []
    record = logging.makeLogRecord({"event": LogEvent.PROGRESS, "done": 3, "total": 9})
    assert Terminal(meanwhile=lambda *counts: done.append(counts)).filter(record)
    assert done == [(3, 9)]


def test_a_table_has_no_control_characters() -> None:
    assert plain_text(Text("a\x1b[2Jb\u202e"), width=80) == r"a\x1b[2Jb\u202e"


def test_a_log_has_a_line_for_a_jobs_begin_and_one_for_its_end(shown: io.StringIO) -> None:
    """As a terminal with a view has them; Snakemake's own stay in its log file."""
    terminal = Terminal(local=["comparison"])
    terminal.progress.region.stream = shown
    view = View(SimpleNamespace(news="", look=list))
    of_job = {"event": LogEvent.JOB_INFO, "wildcards": {}, "rule_msg": None}
    with terminal.installed(view):
        logger.info("Select jobs to execute...")
        logger.info("localrule all:\n    input: a, b", extra=of_job | {"jobid": 0, "rule_name": "all"})
        for number, rule in ((1, "gate"), (2, "comparison")):
            logger.info(
                f"Job {number}", extra=of_job | {"jobid": number, "rule_name": rule, "rule_msg": f"Doing {rule}"}
            )
        for number in (0, 1, 2):
            logger.info("Finished jobid", extra={"event": LogEvent.JOB_FINISHED, "job_id": number})
        logger.info("Complete log(s): x")
    assert [line.split(maxsplit=1)[1] for line in shown.getvalue().splitlines()] == [
        "Doing gate",
        "Doing comparison",
        "done after 0 s: Doing gate",
        "log(s): x",
    ]
