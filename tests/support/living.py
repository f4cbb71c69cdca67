"""Processes that a test finds: they may end at any moment."""

from __future__ import annotations

import psutil


def words(process: psutil.Process) -> list[str]:
    """The words of its command line; none of a process that has ended, also where nobody has waited for it yet."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


def children(pid: int) -> list[psutil.Process]:
    """All processes that a process has started, and those that they have; none where it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
