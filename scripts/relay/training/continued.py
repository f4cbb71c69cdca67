"""The chain that a segment goes on with: that of the run's declared start, or a new one where that start has none.

And the attempt that this job adds to it.
"""

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json
from relay.base.lock import exclusive
from relay.chain.supervisor import started
from relay.chain.writers import make_own
from relay.run_folder import attempts, replaced, run_chain
from relay.run_folder.places import Places
from relay.run_folder.run_chain import Attempt, RunChain
from relay.run_folder.snapshot import changed_since, freeze, planned
from relay.run_folder.sound_checkpoints import saved_step
from relay.run_folder.try_again import FRUITLESS_ATTEMPTS, Case, Tried, given_up
from relay.slurm import allocation, commands
from relay.spec.job import Job
from relay.spec.run import Run
from relay.training.adoption import ADOPTED
from relay.training.changed_code import code_of_today, files, may_change


def declared(places: Places) -> tuple[Run, str]:
    """The run, and the start (its generation) that the workflow has declared. Raises UserError where one is missing."""
    path, generation = places.run / "run.json", run_chain.declared(places.run)
    if not path.is_file():
        raise UserError(f"run {places.run_id}: {path} is missing; start the run through the workflow first")
    run = Run.read(path)
    if run.id != places.run_id:
        raise UserError(f"{path}: is that of run {run.id}; start the same call again, which writes it anew")
    if generation is None:
        path = places.run / run_chain.START
        raise UserError(
            f"run {run.id}: {path} is missing or damaged; delete it, and start the run through the workflow"
        )
    return run, generation


def continued(places: Places, run: Run, generation: str, first: int) -> RunChain:
    """The chain to which a segment from step `first` on belongs, written down, with code that is as it was frozen.

    Raises UserError where it should be there and is not, or where its code was changed.
    """
    chain = run_chain.read(places.work)
    if chain is None or chain.generation != generation:
        chain = _new(places, run, generation, first, nothing_there=chain is None)
        chain.write(places.work)
    elif first == 0 and may_change(run, places.work):  # the user may have mended what failed
        chain = replace(chain, **_code(places, run))
        chain.write(places.work)
    run_chain.note_begun(places.run, generation)
    problem = changed_since(places.code / chain.code)
    if problem and not _made_again(places, run, chain.code):
        raise UserError(
            f"run {run.id}: the snapshot {places.code / chain.code} of its code {problem}; "
            f"delete {places.run} to train it from the start with the code of today"
        )
    return chain


def _new(places: Places, run: Run, generation: str, first: int, *, nothing_there: bool) -> RunChain:
    """The chain of a start that has none yet. What an older start has left is put aside."""
    if first > 0 or run_chain.begun(places.run) == generation:
        raise UserError(
            f"run {run.id}: the checkpoints in {places.work} do not belong to this chain, or are gone; "
            f"put them back (relay train-again --undo {run.id}), or delete {places.run} to train it from the start"
        )
    adopted = _adopted(places) if nothing_there else None
    if adopted is None:
        with exclusive(places.work):  # not under the feet of a trainer that an older start has left behind
            replaced.put_work_aside(places)
        make_own(places.work)
    return RunChain(generation=generation, adopted_from=adopted, **_code(places, run))


def _adopted(places: Places) -> dict[str, Any] | None:
    """From where the run goes on with another one's checkpoint; None where it does not. Raises UserError."""
    path = places.work / ADOPTED
    try:
        adopted: dict[str, Any] | None = read_json(path)
        if adopted is not None:
            int(adopted["step"])
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"{path}: is damaged; delete {places.work}, and adopt the checkpoint again") from None
    return adopted


def _code(places: Places, run: Run) -> dict[str, Any]:
    """What a run that begins is trained by: the plan's code, or today's where it is started by hand."""
    return planned(places.code, run) or code_of_today(run, places.code)


def _made_again(places: Places, run: Run, code: str) -> bool:
    """Whether today's code is what a lost or changed snapshot was made of: it is then made again."""
    try:
        return freeze(*files(run), folder=places.code).name == code
    except (OSError, UserError):
        return False


# The attempt of this job


def new_attempt(work: Path, chain: RunChain, first: int, last: int, job: Job | None) -> Attempt:
    """The attempt of this process's job. `job` is what was asked of Slurm; None where a run is on this machine."""
    return Attempt(
        # None of those known, and none whose records are there.
        number=max((0, *(each.number for each in chain.attempts), *attempts.numbers(work))) + 1,
        started=time.time(),
        first=first,
        last=last,
        found=saved_step(work),
        job=os.environ.get("SLURM_JOB_ID"),
        restarts=os.environ.get("SLURM_RESTART_COUNT", "0"),
        **_of_its_job(job),
    )


def _of_its_job(job: Job | None) -> dict[str, Any]:
    """`submitted`, `job_started` and `shares_nodes`, without what is not known.

    Slurm tells them of the run's own job. Elsewhere a job begins with this Python.
    """
    if job is None:
        return {"job_started": started()}
    with suppress(UserError):  # a controller that is busy: it is only for the report
        shown = commands.show_job(os.environ.get("SLURM_JOB_ID", ""), tries=1)
        waited = allocation.waited(shown)
        return {
            "submitted": waited.get("submitted"),
            "job_started": waited.get("started"),
            "shares_nodes": allocation.shares_nodes(shown),
        }
    return {}


def why_not(chain: RunChain, attempt: Attempt) -> str:
    """Why a job that Slurm has put back into the queue is given up; '' where it may go on.

    The driver does not see such a job's ends: Slurm starts it again after a lost node or a preemption, without end.
    """
    if attempt.job is None or attempt.restarts == "0":
        return ""
    before = chain.attempts[-FRUITLESS_ATTEMPTS:]
    fruitless = sum((other.job, other.found) == (attempt.job, attempt.found) for other in before)
    reason = given_up(Case.UNKNOWN, Tried(fruitless=fruitless, step=attempt.found))
    return f"Slurm has started job {attempt.job} again and again: {reason}" if reason else ""
