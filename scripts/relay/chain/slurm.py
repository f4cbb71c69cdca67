"""Slurm's commands, whose answers the user's own defaults for them do not change; and when this job's time ends."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from .supervisor import started
from .telling import ChainError, say

LONGEST_SECONDS = 120.0  # for an answer
# Defaults for what commands print, and for what sbatch would wait for or multiply. All else of sbatch's (SBATCH_*) is
# what the user wants of a job.
_DEFAULTS = re.compile(
    r"(SQUEUE|SACCT|SINFO|SCANCEL|SCONTROL)_.*|SLURM_(TIME_FORMAT|BITSTR_LEN|JSON|YAML)|SBATCH_(WAIT|ARRAY_INX)"
)
_CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")  # a job asks its own cluster, and submits to it
_NUMBER = re.compile(r"(?m)^(\d+(?:;\S+)?)\s*$")
GONE = re.compile("invalid job id", re.I)  # what commands say of a job that Slurm has forgotten; all else is no answer
END_TIME = "RELAY_CHAIN_END_TIME"  # Unix seconds; `relay-chain --time` sets it
_FORMS = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS; 0 or UNLIMITED for no limit"
_ANSWER_SECONDS = 30.0


def environment(program: str, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What one of Slurm's commands finds: `given` without the user's defaults, and times in seconds since 1970."""
    unset = _CLUSTERS if "SLURM_JOB_ID" in os.environ else ()
    own = {name: value for name, value in given.items() if not _DEFAULTS.fullmatch(name) and name not in unset}
    return own if program == "sbatch" else own | {"SLURM_TIME_FORMAT": "%s"}  # a job gets what sbatch has


def call(*words: str, env: Mapping[str, str] = os.environ, seconds: float = LONGEST_SECONDS, **options: Any) -> str:
    """What a command of Slurm's prints, for `env` as it has it. Raises ChainError."""
    own = environment(words[0], env)
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=seconds, env=own, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChainError(f"{words[0]}: {getattr(error, 'strerror', None) or 'no answer'}") from None
    if done.returncode:
        raise ChainError(f"{words[0]}: {' '.join(done.stderr.split()) or f'status {done.returncode}'}")
    return done.stdout.strip()


def number_of(printed: str) -> str | None:
    """The job, as `number` or `number;cluster`, in what `sbatch --parsable` printed, beside a greeting of the site's.

    None where there is none, or more than one.
    """
    numbers = _NUMBER.findall(printed)
    return str(numbers[0]) if len(numbers) == 1 else None


def words_for(job: str) -> list[str]:
    """The words that name a job, as `number_of` has it, to scancel, and after `--jobs` to squeue."""
    number, _, cluster = job.partition(";")
    return [number, *([f"--clusters={cluster}"] if cluster else [])]


def fields_of(job: str, printed: str) -> Iterator[str]:
    """What squeue says of this very job, in the format `%A %i …`, no others of its group, and no greetings."""
    for words in (line.split(maxsplit=2) for line in printed.splitlines()):
        if job.partition(";")[0] in words[:2]:
            yield " ".join(words[2:])


def is_there(job: str) -> bool:
    """Whether a job of this user's is queued or runs.

    Slurm forgets a job some minutes after its end, and says so as an error. Raises ChainError where it says anything
    else: that is no answer, and a second chain would be one too many.
    """
    try:
        printed = call("squeue", "--noheader", "--format", "%A %i %U", "--jobs", *words_for(job))
        return str(os.getuid()) in fields_of(job, printed)  # another user may have submitted the same script
    except ChainError as error:
        if GONE.search(str(error)):
            return False
        raise


def unix_seconds(text: str) -> float | None:
    """A time as Slurm prints it, in seconds since 1970; None for N/A, Unknown, NONE and the like."""
    if text.isdigit():
        return float(text)
    with suppress(ValueError):  # versions that ignore SLURM_TIME_FORMAT print local time
        return datetime.fromisoformat(text).timestamp()
    return None


def seconds_of(limit: float | str) -> float | None:
    """A time limit in seconds: a number of seconds, or a text as Slurm's `--time` takes it ("30" is minutes).

    None for a text that is no limit to Slurm ("0", "UNLIMITED"). Raises ChainError for any other.
    """
    if isinstance(limit, str):
        if re.fullmatch(r"\d*\.\d+", limit.strip()):
            return seconds_of(60 * float(limit))
        if limit.strip().upper() in ("UNLIMITED", "INFINITE", "-1"):
            return None
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit.strip())
        if not match:
            raise ChainError(f"time limit: '{limit}' is not allowed; allowed: {_FORMS}")
        days, *given = match.groups()
        parts = [int(part) for part in given if part]
        # Slurm reads one or two numbers from the hours on after days, and from the minutes on without.
        hours, minutes, seconds = ([*parts, 0, 0] if days or len(parts) == 3 else [0, *parts, 0])[:3]
        return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds) or None
    if not limit > 0:
        raise ChainError(f"time limit: {limit} is not allowed; allowed: more than 0 seconds, or {_FORMS}")
    return float(limit)


def end_time(limit: float | str | None = None, environment: Mapping[str, str] = os.environ) -> float | None:
    """The earliest end of this process's time that is known, in Unix seconds; None where none is.

    `limit` is the script's own, counted from the start of its process; the `environment` may tell others. Raises
    ChainError for a wrong one.
    """
    own = None if limit is None else seconds_of(limit)
    ends = [in_environment(END_TIME, environment), own and (started() or time.time()) + own]
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
        printed = call("squeue", "--noheader", "--jobs", job, "--format", "%A %i %e", seconds=_ANSWER_SECONDS)
        said = next(fields_of(job, printed), "no such job")
    except ChainError as error:
        said = str(error)
    if (end := unix_seconds(said)) is None and needed:
        say(f"warning: Slurm tells no end of job {job} ({said}); a signal alone stops it, or relay-chain --time LIMIT")
    return end
