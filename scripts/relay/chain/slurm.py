"""Calls of Slurm's commands, whose answers the user's own defaults for them do not change."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any

from .errors import ChainError

_SECONDS = 120.0  # for an answer
# Defaults for what commands print. Those of sbatch (SBATCH_*) are what the user wants of a job.
_DEFAULTS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SLURM_TIME_FORMAT")
_NUMBER = re.compile(r"(?m)^(\d+)(?:;\S+)?$")


def call(*words: str, env: Mapping[str, str] | None = None, seconds: float = _SECONDS, **options: Any) -> str:
    """What a command of Slurm's prints. `env` is the environment, by default this process's. Raises ChainError."""
    # sbatch hands its environment to the job.
    own = dict(env or {name: value for name, value in os.environ.items() if not name.startswith(_DEFAULTS)})
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=seconds, env=own, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChainError(f"{words[0]}: {getattr(error, 'strerror', None) or 'no answer'}") from None
    if done.returncode:
        raise ChainError(f"{words[0]}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def number_of(printed: str) -> str:
    """The job's number in what `sbatch --parsable` prints, beside which a site may print a greeting.

    Raises ChainError where there is none, or more than one.
    """
    found = _NUMBER.findall(printed)
    if len(found) != 1:
        raise ChainError(f"sbatch: no job's number in what it printed: {' '.join(printed.split())!r}; look with squeue")
    return str(found[0])
