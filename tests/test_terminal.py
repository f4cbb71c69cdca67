"""What the terminal keeps of the Slurm executor's words, held against the installed version of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin
from rich.text import Text
from snakemake.logging import logger
from snakemake_interface_logger_plugins.common import LogEvent

from relay.base.plain_text import plain_text
from relay.driver.terminal import Terminal


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


def test_something_may_be_done_after_each_job() -> None:
    done: list[tuple[int, int]] = []
    record = logging.makeLogRecord({"event": LogEvent.PROGRESS, "done": 3, "total": 9})
    assert Terminal(meanwhile=lambda *counts: done.append(counts)).filter(record)
    assert done == [(3, 9)]


def test_a_table_has_no_control_characters() -> None:
    assert plain_text(Text("a\x1b[2Jb\u202e"), width=80) == r"a\x1b[2Jb\u202e"
