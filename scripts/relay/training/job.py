"""One segment of a chain: the part of a run that one job does, around the processes that train.

The rolling directory (`results/checkpoints/{run}`) is unknown to Snakemake, which deletes the outputs of a job that
fails. `chain.json` there says to which chain the checkpoints belong, which code it runs and which attempts it had.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.errors import Busy, UserError
from relay.base.files import read_json, write_json
from relay.base.lock import exclusive, wait_until_free
from relay.chain.writers import make_own
from relay.datasets import verified
from relay.launch.launcher import launch
from relay.run_folder import attempts, chain, faults, replaced
from relay.run_folder.attempts import FRUITLESS_ATTEMPTS
from relay.run_folder.places import Places, dataset_folder
from relay.run_folder.progress import saved_step
from relay.run_folder.snapshot import changed_since, freeze, name_of_today, planned
from relay.run_folder.trust import refuse_others
from relay.spec.job import Job
from relay.spec.run import Run
from relay.training.adoption import ADOPTED
from relay.training.changed_code import code_of_today, files, may_change, sources
from relay.training.job_start import job_start

SAVING_SECONDS = 600.0  # what processes may need to save and end whose launcher was killed


def run_segment(places: Places, first: int, last: int, attempt: int, minutes: float | None = None) -> int:
    """Train steps `first` to `last` of the run and write its state file; returns the exit status of the job.

    0: done; 75: interrupted, worth a retry; 1: a fault of the program's own, recorded, which a retry (`attempt` > 1)
    only repeats in words. `minutes` is the time limit of a command, where no scheduler keeps it. Raises UserError where
    the run is not declared or its chain cannot go on, and Busy where another job trains it.
    """
    run, generation = _declared(places)
    refuse_others(places.work)
    wait_until_free(places.work)  # an earlier attempt may still save
    if (ended := faults.begin(places.work, f"run {run.id}", attempt)) is not None:
        return ended
    run_chain = _chain(places, run, generation, first)
    first = max(first, (run_chain.get("adopted_from") or {}).get("step", 0))
    if first >= last:  # another run has done it
        _write_state(places, run, last, run_chain)
        return 0
    if run.strategy.script is None:
        verified.check(dataset_folder(places.results, run.dataset))
    number = chain.next_number(places.work, run_chain)
    entry = {"number": number, "first": first, "last": last, "started": time.time(), **_of_slurm(places.work)}
    entry |= job_start(Job.read(places.run / "run.json"))
    if problem := _no_progress(run_chain["attempts"], entry):
        return ending.fault(f"run {run.id}: {problem}", "the log says more; the same call tries again")
    run_chain["attempts"].append(entry)
    chain.write(places.work, run_chain)
    _put_folder_aside(places, run, run_chain)
    before = saved_step(places.work)
    role, arguments = "script.process", {"--spec": places.run / "run.json", "--work": places.work, "--attempt": number}
    if run.strategy.script is None:
        role, dataset = "training.trainer", dataset_folder(places.results, run.dataset)
        arguments |= {"--dataset": dataset, "--first": first, "--last": last}
    elif minutes:
        arguments |= {"--minutes": minutes}
    words = [str(part) for pair in arguments.items() for part in pair]
    status = launch(places.run / "run.json", role, places.work, words, places.code / run_chain["code"])
    if not faults.of_ranks(places.work):
        with suppress(Busy):  # its processes save and end, though their launcher was killed
            wait_until_free(places.work, SAVING_SECONDS)
    with suppress(OSError):  # a full disk: what the processes say of it is the better reason
        chain.note_end(places.work, generation, number, time.time())
    return _conclude(places, run, last, number, status, run_chain, before)


def _declared(places: Places) -> tuple[Run, str]:
    """The run, and the start (its generation) that the workflow has declared. Raises UserError where one is missing."""
    path, generation = places.run / "run.json", chain.declared(places.run)
    if not path.is_file():
        raise UserError(f"run {places.run_id}: {path} is missing; start the run through the workflow first")
    run = Run.read(path)
    if run.id != places.run_id:
        raise UserError(f"{path}: is that of run {run.id}; start the same call again, which writes it anew")
    if generation is None:
        path = places.run / chain.CHAIN
        raise UserError(
            f"run {run.id}: {path} is missing or damaged; delete it, and start the run through the workflow"
        )
    return run, generation


def _chain(places: Places, run: Run, generation: str, first: int) -> dict[str, Any]:
    """The chain that this segment belongs to; a new one where the declared start is newer than the checkpoints."""
    run_chain = chain.read(places.work)
    if run_chain is None or run_chain["generation"] != generation:
        if first > 0 or chain.begun(places.run) == generation:
            raise UserError(
                f"run {run.id}: the checkpoints in {places.work} do not belong to this chain, or are gone; "
                f"put them back, or delete {places.run} to train it from the start"
            )
        adopted = _adopted(places) if run_chain is None else None
        if adopted is None:
            with exclusive(places.work):  # not under the feet of a trainer that an older start has left behind
                replaced.put_work_aside(places)
            make_own(places.work)
        run_chain = {
            "generation": generation,
            **_code(places, run),
            "adopted_from": adopted,
            "attempts": [],
        }
        chain.write(places.work, run_chain)
    elif first == 0 and may_change(run, places.work):  # the user may have mended what failed
        run_chain |= _code(places, run)
        chain.write(places.work, run_chain)
    chain.note_begun(places.run, generation)
    problem = changed_since(places.code / run_chain["code"])
    if problem and not _is_todays(places, run, run_chain["code"]):
        raise UserError(
            f"run {run.id}: the snapshot {places.code / run_chain['code']} of its code {problem}; "
            f"delete {places.run} to train it from the start with the code of today"
        )
    if _is_edited(run, run_chain):
        print(
            f"run {run.id}: its strategy's code has changed, and it goes on with the code that it began with; "
            f"`{replaced.how_anew(places.run_id)}` lets it start anew with today's",
            file=sys.stderr,
        )
    return run_chain


def _adopted(places: Places) -> dict[str, Any] | None:
    """From where the run goes on with another one's checkpoint; None where it does not. Raises UserError."""
    try:
        adopted: dict[str, Any] | None = read_json(places.work / ADOPTED)
        if adopted is not None:
            int(adopted["step"])
    except (OSError, ValueError, TypeError, KeyError):
        path = places.work / ADOPTED
        raise UserError(f"{path}: is damaged; delete {places.work}, and adopt the checkpoint again") from None
    return adopted


def _of_slurm(work: Path) -> dict[str, Any]:
    """What an attempt's entry keeps of its Slurm job: which start of which job it is, and how far the run had come."""
    job, restarts = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "0")
    return {"job": job, "restarts": restarts, "found": saved_step(work)} if job else {}


def _no_progress(before: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> str:
    """Why a job that Slurm has put back into the queue is given up; '' where it may go on.

    The driver does not see such a job's ends: Slurm starts it again after a lost node or a preemption, without end.
    """
    fruitless = [
        other
        for other in before[-FRUITLESS_ATTEMPTS:]
        if entry.get("restarts", "0") != "0"
        and (other.get("job"), other.get("found")) == (entry["job"], entry["found"])
    ]
    if len(fruitless) < FRUITLESS_ATTEMPTS:
        return ""
    return (
        f"Slurm has started job {entry['job']} again and again: {FRUITLESS_ATTEMPTS} attempts in a row came no further "
        f"than step {entry['found']}"
    )


def _is_todays(places: Places, run: Run, code: str) -> bool:
    """Whether today's code is what a lost or changed snapshot was made of: it is then made again."""
    try:
        return freeze(*files(run), folder=places.code).name == code
    except (OSError, UserError):
        return False


def _is_edited(run: Run, run_chain: Mapping[str, Any]) -> bool:
    """Whether the strategy computes otherwise today than the run's code: any other file may have changed."""
    if run.strategy.script:
        return False
    with suppress(UserError):  # the run does not need today's files
        return name_of_today(*files(run)) != run_chain["code"] and sources(run) != run_chain["strategy_source"]
    return False


def _code(places: Places, run: Run) -> dict[str, str]:
    """What a run that begins is trained by: the plan's code, or today's where it is started by hand."""
    return planned(places.code, run) or code_of_today(run, places.code)


def _conclude(
    places: Places, run: Run, last: int, number: int, status: int, run_chain: dict[str, Any], before: int
) -> int:
    """Turn what the processes left behind into a state file or an exit status. `before` is the step saved before."""
    lines, script = attempts.read(places.work, number), run.strategy.script
    ended = lines[-1] if lines and "end" in lines[-1] else {}
    start = before if script or not lines else lines[0]["start"]
    if script and faults.of_ranks(places.work):  # the command's other processes are told to end because of it
        ended = {}
    # The records decide, not the status: torchrun reports failure where a signal came just after the last step.
    if (ended.get("done") and status == 0) if script else ended.get("end") == last:
        _write_state(places, run, run.length.total_steps if script else last, run_chain)
        return 0
    if reason := ended.get("stopped"):
        where = f"after step {ended['end']}" if script else f"at step {ended['end']} of {last}"
        message = f"run {run.id}: stopped {where} ({reason})"
        return ending.interrupted(message, planned=reason == attempts.DEADLINE)
    came_further = saved_step(places.work) > start
    return faults.concluded(places.work, f"run {run.id}", status, came_further=came_further)


def _put_folder_aside(places: Places, run: Run, run_chain: dict[str, Any]) -> None:
    """Let a command that is started again begin with an empty folder, unless it keeps its own checkpoints there.

    Else one that looks for what it has saved would seem fast. What is there is kept, under another name.
    """
    script, before = run.strategy.script, run_chain["attempts"][:-1]
    if script is None or script.chained or not before or not places.folder.exists():
        return
    number = before[-1]["number"]
    lines = attempts.read(places.work, number)
    if not (lines and lines[-1].get("asks_again")):
        places.folder.rename(places.work / f"folder-{number}")


def _write_state(places: Places, run: Run, last: int, run_chain: dict[str, Any]) -> None:
    """The declared file that tells the workflow: the segment is done."""
    state = {"run": run.id, "step": last, "attempts": len(run_chain["attempts"])}
    write_json(places.state(last), state | {key: run_chain[key] for key in ("generation", "code", "strategy_source")})
