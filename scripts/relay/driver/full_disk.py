"""A call whose folder takes no writing, from the start or midway, ends with one line."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.base import ending
from relay.chain.files import disk_refusal

NOTE_BYTES = 2**16  # Snakemake's notes and the plan's files are smaller, each
NOT_YOURS = (errno.EACCES, errno.EPERM)
# What Snakemake meets where a file is in the place of a folder, or the other way round.
IN_THE_WAY = (NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)
ELSEWHERE = "work in a folder of your own (snakemake --directory FOLDER)"


def unwritable(folder: Path) -> str:
    """What is wrong where nothing can be written below the folder; '' where it can.

    Snakemake keeps notes for a dry run, too.
    """
    notes = folder / ".snakemake"
    if os.path.lexists(notes) and not notes.is_dir():
        return f"{notes}: is in the place of the folder where Snakemake keeps its notes: move it away"
    error = disk_refusal(notes if notes.is_dir() else folder, NOTE_BYTES)
    return _line(folder, error) if error else ""


def no_cache() -> str:
    """What is wrong where Snakemake's own cache, in the home folder, cannot be written; '' where it can.

    Each call needs it whose `--shared-fs-usage` has it: also one that runs nothing, and one whose folder is on another
    disk.
    """
    from snakemake.common import get_appdirs

    cache = Path(get_appdirs().user_cache_dir)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        error = disk_refusal(cache, NOTE_BYTES)
    except OSError as refused:
        error = refused
    remedy = "free it or its quota, or name a folder of yours on another disk in XDG_CACHE_HOME"
    return f"{cache}: Snakemake's cache cannot be written: {error.strerror}; {remedy}" if error else ""


def show_no_tracebacks_of_logs() -> None:
    """Snakemake's log may lie on the full disk: let Python show no traceback for each line that it does not take."""
    logging.raiseExceptions = False


@contextmanager
def ends_call(folder: Path) -> Iterator[_Complaints]:
    """While this lasts, a disk of this folder that takes no writing ends the call with one line, not with tracebacks.

    Snakemake goes on with what it can, and complains of each file: this is left out. One line tells, too, what is in
    the way of a file or a folder that Snakemake itself looks at.
    """
    from snakemake.logging import logger

    complaints = _Complaints(folder)
    logger.addFilter(complaints)
    try:
        yield complaints
    except Exception as error:
        if refused := complaints.led_to(error):
            sys.exit(f"error: {_line(folder, refused)}")
        if isinstance(error, IN_THE_WAY) and error.filename:
            sys.exit(f"error: {error.filename}: {error.strerror}; look at what is there, and move it away")
        raise
    finally:
        logger.removeFilter(complaints)


class _Complaints(logging.Filter):
    """Leaves out of Snakemake's log what says that the folder's disk takes no writing, and keeps why."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.refused: OSError | None = None

    def led_to(self, error: BaseException | None) -> OSError | None:
        """What the disk said, where that is why the call ends, with this error or without one."""
        return ending.of_a_disk(error) or self.refused

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:  # two for each job, also of a dry run
            return True
        words = str(record.msg)
        number = next((number for number in ending.OF_A_DISK if os.strerror(number) in words), None)
        if number is None:
            return True
        # Snakemake's own notes are in the folder; a job may have written elsewhere.
        if "/relay/" in record.pathname and disk_refusal(self.folder, NOTE_BYTES) is None:
            return True
        self.refused = OSError(number, os.strerror(number))
        return False


def _line(folder: Path, refused: OSError) -> str:
    if refused.errno in NOT_YOURS:
        return f"{folder}: you may not write there; {ELSEWHERE}"
    return f"{folder}: {refused.strerror}; {ending.remedy_of(refused) or ELSEWHERE}"
