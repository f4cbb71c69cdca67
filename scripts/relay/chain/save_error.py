"""Why a checkpoint could not be saved, and what a script says of it."""

from __future__ import annotations

from pathlib import Path

from .files import disk_refusal
from .telling import ChainError, say

FULL = ("No space left", "quota exceeded")  # of errno's texts


class SaveError(Exception):
    """Why a save has failed, and on which rank; the same on all of them. Its cause is known to that rank.

    `again`: the one before has failed, too.
    """

    def __init__(self, reason: str, rank: int) -> None:
        super().__init__(f"{reason} (rank {rank})")
        self.rank, self.again = rank, False


def tried_again(folder: Path, step: int, failure: SaveError, rank: int) -> None:
    """Say that a save of a script's has failed. Raises ChainError where the one before failed, too."""
    line, aloud = f"{folder}: step {step} could not be saved: {failure}", rank == failure.rank
    if failure.again:
        remedy = "make room there" if any(words in str(failure) for words in FULL) else "see to that disk"
        raise ChainError(f"{line}; {remedy}, and start the same job again", aloud=aloud)
    if aloud:
        say(f"warning: {line}; the next save tries again")


def cause_of(error: BaseException, rank: int, folder: Path) -> BaseException | None:
    """Why this rank could not write; None where another one knows. A full disk is not in torch's words: a probe is."""
    failures = getattr(error, "failures", None)  # of torch's CheckpointException: by rank, the same on all ranks
    if isinstance(failures, dict) and failures:
        if rank not in failures:
            return None
        error = failures[rank][0]
    return error if isinstance(error, OSError) else (disk_refusal(folder) or error)


def in_one_line(cause: BaseException) -> str:
    """That in one line: of a disk, as it is known to all."""
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return f"{type(cause).__name__}: {cause}".splitlines()[0]
