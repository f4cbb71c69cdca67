"""Calls of Slurm's commands, whose answers the user's own defaults for them do not change."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from .errors import ChainError

_SECONDS = 120.0  # for an answer
# Defaults for what commands print, and for what sbatch would wait for or multiply. All else of sbatch's (SBATCH_*) is
# what the user wants of a job.
_DEFAULTS = re.compile(
    r"(SQUEUE|SACCT|SINFO|SCANCEL|SCONTROL)_.*|SLURM_(TIME_FORMAT|BITSTR_LEN|JSON|YAML)|SBATCH_(WAIT|ARRAY_INX)"
)
_CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")  # a job asks its own cluster, and submits to it
_NUMBER = re.compile(r"(?m)^(\d+(?:;\S+)?)\s*$")
GONE = re.compile("invalid job id", re.I)  # what commands say of a job that Slurm has forgotten; all else is no answer


def environment(program: str, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What one of Slurm's commands finds: `given` without the user's defaults, and times in seconds since 1970."""
    unset = _CLUSTERS if "SLURM_JOB_ID" in os.environ else ()
    own = {name: value for name, value in given.items() if not _DEFAULTS.fullmatch(name) and name not in unset}
    return own if program == "sbatch" else own | {"SLURM_TIME_FORMAT": "%s"}  # a job gets what sbatch has


def call(*words: str, env: Mapping[str, str] = os.environ, seconds: float = _SECONDS, **options: Any) -> str:
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


def unix_seconds(time: str) -> float | None:
    """A time as Slurm prints it, in seconds since 1970; None for N/A, Unknown, NONE and the like."""
    if time.isdigit():
        return float(time)
    with suppress(ValueError):  # versions that ignore SLURM_TIME_FORMAT print local time
        return datetime.fromisoformat(time).timestamp()
    return None
