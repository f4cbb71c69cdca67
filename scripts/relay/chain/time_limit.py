"""When this job's time ends: as Slurm says, as `relay-chain --time` was told, or as the script gives it."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from . import slurm
from .errors import ChainError, say

END_TIME = "RELAY_CHAIN_END_TIME"  # Unix seconds; `relay-chain --time` sets it
_FORMS = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
_ANSWER_SECONDS = 30.0


def seconds_of(limit: float | str) -> float:
    """A time limit in seconds: a number of seconds, or a text as Slurm's `--time` takes it ("30" is minutes).

    Raises ChainError for any other.
    """
    if isinstance(limit, str):
        if re.fullmatch(r"\d*\.\d+", limit.strip()):
            return seconds_of(60 * float(limit))
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit.strip())
        if not match:
            raise ChainError(f"time limit: '{limit}' is not allowed; allowed: {_FORMS}")
        days, *given = match.groups()
        parts = [int(part) for part in given if part]
        # Slurm reads one or two numbers from the hours on after days, and from the minutes on without.
        hours, minutes, seconds = ([*parts, 0, 0] if days or len(parts) == 3 else [0, *parts, 0])[:3]
        limit = float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
    if not limit > 0:
        raise ChainError(f"time limit: {limit} is not allowed; allowed: more than 0 seconds, or {_FORMS}")
    return float(limit)


def end_time(limit: float | str | None = None, environment: Mapping[str, str] = os.environ) -> float | None:
    """The earliest end of this process's time that is known, in Unix seconds; None where none is.

    `limit` is the script's own, counted from the start of its process; the `environment` may tell others. Raises
    ChainError for a wrong one.
    """
    ends = [in_environment(END_TIME, environment), None if limit is None else _process_start() + seconds_of(limit)]
    ends.append(_slurm_end(needed=not any(ends)))
    return min((end for end in ends if end is not None), default=None)


def in_environment(variable: str = "SLURM_JOB_END_TIME", environment: Mapping[str, str] = os.environ) -> float | None:
    """The end, in Unix seconds, that an environment variable tells; else None, with a warning of nonsense."""
    if not (text := environment.get(variable)):
        return None
    with suppress(ValueError):
        if math.isfinite(end := float(text)):
            return end
    say(f"warning: {variable}: '{text}' is no time in seconds since 1970, and is not heeded")
    return None


def _slurm_end(*, needed: bool) -> float | None:
    """Slurm's end of the job; a warning where it tells none and that is `needed`.

    Not all versions say it in the environment: the controller is asked.
    """
    job, end = os.environ.get("SLURM_JOB_ID"), in_environment()
    if job is None or end is not None:
        return end
    try:
        printed = slurm.call("squeue", "--noheader", "--jobs", job, "--format", "%A %i %e", seconds=_ANSWER_SECONDS)
        said = next(slurm.fields_of(job, printed), "no such job")
    except ChainError as error:
        said = str(error)
    if (end := slurm.unix_seconds(said)) is None and needed:
        say(f"warning: Slurm tells no end of job {job} ({said}); a signal alone stops it, or relay-chain --time LIMIT")
    return end


def _process_start() -> float:
    """When this process was started, in Unix seconds: importing torch is part of its time. Else now."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    return time.time()
