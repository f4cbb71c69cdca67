"""The name of an attempt: all processes of one attempt of a job share it, and no others have it.

It is part of the names of what they leave in a shared folder, so that processes which outlive their attempt, or remains
of it, cannot be taken for those of a later one.
"""

from __future__ import annotations

import os
import secrets

ATTEMPT = "TORCH_RELAY_ATTEMPT"  # processes inherit it from the job that starts them


def begin() -> None:
    """A new attempt begins in this process, which will start the others."""
    os.environ[ATTEMPT] = secrets.token_hex(4)


def name() -> str:
    """The attempt to which this process belongs; "by-hand" where no job has started it."""
    return os.environ.get(ATTEMPT, "by-hand")
