"""`relay-chain sbatch job.sh`: each job of Slurm submits the next one, until the training has ended.

The next job is submitted when one begins, and may start when that one has ended, however it ended: also a job that is
killed goes on. Where the training has ended, or failed by itself, the job cancels the next one. A file beside the
script tells which job was submitted last. So there are never two chains of it, or two next jobs of one job. It also
tells which jobs have saved no step: after two in a row, the next one is cancelled, too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import slurm, writers
from .files import HeldError, exclusive, remove, write_json
from .slurm import END_TIME
from .telling import KILLED, NOTE, STOPPED, ChainError, say

CHAIN = "RELAY_CHAIN_SBATCH"  # what the next job is submitted with, as JSON
MOST_JOBS = 100
FRUITLESS_JOBS = 2  # in a row that have saved no step
# Longer than squeue, sbatch and squeue may take: who holds the record so long has died.
LOCK_SECONDS = 4 * slurm.LONGEST_SECONDS
LAST = "it was the last job allowed"
_LOST = re.compile("timed out|no answer|zero bytes|receive failure", re.I)  # sbatch may have submitted the job
_WAITS = re.compile(r"(?m)^#SBATCH\b.*?\s(--wait|-W)(?=\s|$)")
_ARRAY = re.compile(r"(?m)^#SBATCH\b.*?\s((?:--array|-a)(?:[= ]?[\d,:%-]+))")


@dataclass(frozen=True)
class Chain:
    """The words for sbatch, the folder to submit from, the file that tells the last job, and how many jobs may come."""

    words: list[str]
    folder: str
    record: str
    left: int

    def submit(self, *options: str) -> str:
        """Submit a job, which may submit one less than this; its number. Raises ChainError with Slurm's words."""
        following = Chain(self.words, self.folder, self.record, self.left - 1)
        # What Slurm told this job is not true of the next one.
        of_job = {name for name in os.environ if name.startswith("SLURM_") and "SLURM_JOB_ID" in os.environ}
        stale = of_job - {"SLURM_CONF"} | {NOTE, END_TIME}
        own = {name: value for name, value in os.environ.items() if name not in stale}
        own[CHAIN] = json.dumps(vars(following))
        own.setdefault("SBATCH_OPEN_MODE", "append")  # a job that is started again would empty its log
        at = _script_at(self.words, self.folder) or 0  # of two options that are alike, sbatch takes the last one
        words = [*self.words[:at], *options, *self.words[at:]]
        printed = slurm.call("sbatch", "--parsable", *words, env=own, cwd=self.folder)
        if (job := slurm.number_of(printed)) is None:
            said = " ".join(printed.split())
            raise ChainError(f"sbatch: no job's number in what it printed: {said!r}; look with squeue")
        return job


def main(words: Sequence[str]) -> int:
    """Submit the first job of `[--jobs N] [options of sbatch] job.sh …`; 0. Raises ChainError."""
    most, words = _most(list(words))
    if (at := _script_at(words)) is None:
        shown = f"'{' '.join(words)}' names no file that begins with '#!'" if words else "no batch script is named"
        raise ChainError(f"sbatch: {shown}; write: relay-chain sbatch [--jobs N] job.sh")
    script, own = Path(words[at]), words[:at]  # what follows is the script's
    text = script.read_text(encoding="utf-8", errors="replace")
    if "relay-chain" not in text and ".chain" not in text:
        raise ChainError(f"{script} does not call relay-chain: write it before the command that trains")
    if refused := _exports(own, text):
        raise ChainError(
            f"{refused}: it hands the next job no variables, and the chain would end with its first job; allowed: a "
            "value with ALL, or none at all"
        )
    options = f"#SBATCH {' '.join(own)}\n{text}"
    if waits := _WAITS.search(options):
        raise ChainError(f"{waits[1]}: each job would wait for the end of the next one; leave it out")
    if array := _ARRAY.search(options):
        raise ChainError(
            f"{array[1]}: each job of an array would submit an array; submit a chain for each, by its own script"
        )
    earlier = script.resolve().with_name(f".{script.name}.chain")  # of versions that took all users for one
    record = earlier.with_name(f".{script.name}.{os.getuid()}.chain")
    with _recorded(record) as state:
        if (last := (state or _read(earlier)).get("job")) and slurm.is_there(last):
            there = f"job {last} is queued or runs; cancel it first: {_cancelling(last)}"
            raise ChainError(f"{script} is a chain already: {there}")
        try:
            state |= {"job": Chain(words, str(Path.cwd()), str(record), most).submit(), "after": None}
        except ChainError as error:
            look = "; look with squeue whether Slurm has it all the same, before you submit it again"
            raise ChainError(f"{error}{look if _LOST.search(str(error)) else ''}") from None
        state.pop("gained", None)
    say(f"job {state['job']} is submitted; each job submits the next one, {most} at most")
    return 0


def _script_at(words: Sequence[str], folder: str = "") -> int | None:
    """The place of the script, the first word that is a file which begins with `#!`; None where none is.

    sbatch demands that of it; the log that an option names is there, too, once a job has run.
    """
    return next((place for place, word in enumerate(words) if _is_script(Path(folder, word))), None)


def _is_script(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            return stream.read(2) == b"#!"
    except OSError as error:
        raise ChainError(f"{path}: {error.strerror}") from None


def _exports(words: Sequence[str], script: str) -> str:
    """What keeps this environment from the jobs, as it is written; '' where nothing does."""
    exports = re.findall(r"(?m)^#SBATCH\b.*?(--export[= ]\S+)", script)
    exports += [f"SBATCH_EXPORT={os.environ['SBATCH_EXPORT']}"] if "SBATCH_EXPORT" in os.environ else []
    exports += re.findall(r"--export[= ]\S+", " ".join(words))
    # The last one wins: of the script, the environment and the command line.
    return exports[-1] if exports and "ALL" not in re.split("[=, ]", exports[-1].upper()) else ""


def _most(words: list[str]) -> tuple[int, list[str]]:
    """The number of `--jobs N`, which comes first, and the other words."""
    if not words or words[0].partition("=")[0] != "--jobs":
        return MOST_JOBS, words
    _, equals, value = words.pop(0).partition("=")
    if not equals:
        value = words.pop(0) if words else ""
    if not value.isdecimal() or int(value) < 1:
        raise ChainError(f"--jobs: '{value}' is not allowed; allowed: a number from 1 on")
    return int(value), words


@dataclass
class Following:
    """The job that comes after this one: its number, or None where no further one is allowed.

    `owed`: why it could not be submitted so far.
    """

    chain: Chain
    own: str
    job: str | None = None
    owed: str = ""

    def ask(self) -> None:
        """Submit the next job, unless that has been done; where Slurm submits none, it stays owed."""
        try:
            self.job, self.owed = self._submitted(), ""
        except ChainError as error:
            if not self.owed:
                say(f"warning: the next job is not submitted yet: {error}; it is tried again while this one trains")
            self.owed = str(error)

    def _submitted(self) -> str | None:
        """The next job, which is submitted unless it has been; None where none is allowed. Raises ChainError."""
        with _recorded(Path(self.chain.record)) as state:
            if state.get("after") == self.own:
                return str(state["job"])
            if self.chain.left < 1:
                return None
            job = self._lost() or self._submit()
            state |= {"job": job, "after": self.own}
        say(f"job {job} comes after this one; to end the chain: {_cancelling(job)} {self.own}")
        return job

    def _submit(self) -> str:
        try:
            return self.chain.submit(f"--dependency=afterany:{self.own}")
        except ChainError:  # the answer may be lost, and the job submitted
            with suppress(ChainError):
                if job := self._lost():
                    return job
            raise

    def _lost(self) -> str | None:
        """The job that was submitted here, and whose number was lost: with sbatch's answer, or with the record."""
        again = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
        try:
            return next(_waiting_for(self.own, self.chain, again=again), None)
        except ChainError:
            if again or self.owed:
                raise
            return None  # nothing was submitted here, unless the script calls relay-chain twice

    def meanwhile(self, gained: bool | None) -> None:
        """Submit the next job, where it is owed; and note what this one has `gained`: a kill may leave no time."""
        if self.owed:
            self.ask()
        if gained is not None:
            self._fruitless(gained)

    def _fruitless(self, gained: bool | None) -> bool:
        """Note whether this job has saved a step; whether the last ones have saved none. None: that is not known."""
        with _recorded(Path(self.chain.record)) as state:
            before = [(job, its) for job, its in state.get("gained", {}).items() if job != self.own]
            last = {} if gained is None else dict([*before, (self.own, gained)][-FRUITLESS_JOBS:])
            state.pop("gained", None)
            state |= {"gained": last} if last else {}
        return len(last) == FRUITLESS_JOBS and not any(last.values())

    def end(self, status: int, *, gained: bool | None) -> None:
        """Say what follows this job's status, and cancel the next job where no further one would help.

        So it is where the training has ended, or has failed, or where the last jobs have `gained` no step.
        """
        fruitless = self._fruitless(gained) and status in (STOPPED, KILLED)
        if fruitless:
            jobs = f"{FRUITLESS_JOBS} jobs in a row have saved no step"
            say(f"{jobs}; give a job more memory, or a longer limit or shorter steps, and submit it again to go on")
        elif status in (STOPPED, KILLED):
            if self.owed:
                self.ask()
            say(f"job {self.job} goes on" if self.job else f"{self.owed or LAST}; submit it again to go on")
            return
        if self.job:
            with _recorded(Path(self.chain.record)) as state:
                state["after"] = None
            try:
                slurm.call(*_cancelling(self.job).split())
            except ChainError as error:  # the training's own status stands
                say(f"warning: job {self.job} is still to come: {error}; cancel it: {_cancelling(self.job)}")


def follow() -> Following | None:
    """Submit the job that comes after this one, once; None outside such a chain.

    A job that Slurm starts again finds the one that it has submitted before. Where Slurm gives no answer, it is said,
    and asked again later: the job trains meanwhile.
    """
    text, own = os.environ.pop(CHAIN, None), os.environ.get("SLURM_JOB_ID")
    if text is None or own is None or os.environ.get("SLURM_PROCID", "0") != "0":
        return None
    following = Following(Chain(**json.loads(text)), own)
    following.ask()
    return following


def _cancelling(job: str) -> str:
    return " ".join(["scancel", *slurm.words_for(job)])


def _waiting_for(own: str, chain: Chain, *, again: bool) -> Iterator[str]:
    """The user's jobs that wait for this one with the chain's script and its arguments, the oldest first.

    Not those that were submitted before this one began, as by the user; nobody knows when it did where Slurm has
    started it `again`. Raises ChainError.
    """

    def command(words: Sequence[str]) -> list[str]:  # Slurm has a script with a slash as it was written
        return os.path.normpath(Path(chain.folder, " ".join(words))).split()

    script = command(chain.words[_script_at(chain.words, chain.folder) or 0 :])
    mine = writers.user(os.getuid())
    printed = slurm.call("squeue", "--user", mine, "--noheader", "--format", "%A %S %V %E %o")
    rows = [words for line in printed.splitlines() if len(words := line.split()) > 3 and words[0].isdecimal()]
    starts = [] if again else [slurm.unix_seconds(start) or 0.0 for job, start, *_ in rows if job == own]
    for job, _, submitted, dependency, *words in sorted(rows, key=lambda row: int(row[0])):
        waits = re.search(rf"\bafterany:{own}\b", dependency) and command(words) == script
        if waits and (slurm.unix_seconds(submitted) or 0.0) >= max(starts, default=0.0):
            yield job


@contextmanager
def _recorded(path: Path) -> Iterator[dict[str, Any]]:
    """What the record tells, for one process at a time; what is changed in it is written, where it can be."""
    with ExitStack() as stack:
        held = path.with_name(f"{path.name}.held")
        try:
            stack.enter_context(exclusive(held, LOCK_SECONDS)[0])
        except HeldError as error:  # some file systems keep the lock of a node that has died
            holder = str(error) or "another process"
            say(f"warning: {held}: {holder} holds it for {LOCK_SECONDS:.0f} seconds; it is taken for dead, and removed")
            remove(held)
        except OSError:  # one that nodes only read
            pass
        before = _read(path)
        yield (state := dict(before))
        try:
            if state != before:
                write_json(path, state)
        except OSError as error:  # the job is submitted, and the training goes on
            say(f"warning: {path}: {error.strerror}: another chain of this script would not be noticed")


def _read(path: Path) -> dict[str, Any]:
    """What a record tells; nothing where there is none."""
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}
