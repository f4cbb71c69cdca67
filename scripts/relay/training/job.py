"""One segment of a chain: the part of a run that one job does, around the processes that train.

The rolling directory (`results/checkpoints/{run}`) is unknown to Snakemake, which deletes the outputs of a job that
fails. `chain.json` there says to which chain the checkpoints belong, which code it runs and which attempts it had.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.errors import Busy
from relay.base.files import write_json
from relay.base.lock import wait_until_free
from relay.chain.signals import DEADLINE
from relay.datasets import verified
from relay.launch.launcher import launch
from relay.run_folder import attempts, faults, run_chain
from relay.run_folder.places import Places, dataset_folder
from relay.run_folder.run_chain import Attempt, RunChain
from relay.run_folder.sound_checkpoints import refuse_others, saved_step
from relay.spec.job import Job
from relay.spec.run import Run
from relay.training.continued import continued, declared, new_attempt, why_not

SAVING_SECONDS = 600.0  # what processes may need to save and end whose launcher was killed


@dataclass(frozen=True)
class Segment:
    """What this job trains: steps `attempt.first` + 1 to `attempt.last`. `minutes` is the time limit of a command."""

    places: Places
    run: Run
    chain: RunChain
    attempt: Attempt
    minutes: float | None

    @property
    def what(self) -> str:
        return f"run {self.run.id}"


def run_segment(places: Places, first: int, last: int, tries: int, minutes: float | None = None) -> int:
    """Train steps `first` to `last` of the run and write its state file; returns the exit status of the job.

    0: done; 75: interrupted, worth a retry; 1: a fault of the program's own, recorded, which a retry (`tries` > 1)
    only repeats in words. `minutes` is the time limit of a command, where no scheduler keeps it. Raises UserError where
    the run is not declared or its chain cannot go on, and Busy where another job trains it.
    """
    run, generation = declared(places)
    refuse_others(places.work)
    wait_until_free(places.work)  # an earlier attempt may still save
    if (ended := faults.begin(places.work, f"run {run.id}", tries)) is not None:
        return ended

    chain = continued(places, run, generation, first)
    first = max(first, chain.adopted_step)
    if first >= last:  # another run has done it
        return _done(places, run, chain, last)
    if run.strategy.script is None:
        verified.check(dataset_folder(places.results, run.dataset))

    this = new_attempt(places.work, chain, first, last, Job.read(places.run / "run.json"))
    if problem := why_not(chain, this):
        return ending.fault(f"run {run.id}: {problem}", "the log says more; the same call tries again")
    chain = replace(chain, attempts=(*chain.attempts, this))
    chain.write(places.work)

    segment = Segment(places, run, chain, this, minutes)
    status = _train(segment)
    return _conclude_command(segment, status) if run.strategy.script else _conclude_training(segment, status)


def _train(segment: Segment) -> int:
    """Start the processes, and return their status once all have ended, and their end is noted."""
    places, run, this = segment.places, segment.run, segment.attempt
    arguments: dict[str, Any] = {"spec": places.run / "run.json", "work": places.work, "attempt": this.number}
    if run.strategy.script is None:
        role, dataset = "training.trainer", dataset_folder(places.results, run.dataset)
        arguments |= {"dataset": dataset, "first": this.first, "last": this.last}
    else:
        role = "script.process"
        arguments |= {"minutes": segment.minutes} if segment.minutes else {}
        _put_folder_aside(segment)
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    status = launch(places.run / "run.json", role, places.work, words, places.code / segment.chain.code)
    if not faults.of_ranks(places.work):
        with suppress(Busy):  # its processes save and end, though their launcher was killed
            wait_until_free(places.work, SAVING_SECONDS)
    with suppress(OSError):  # a full disk: what the processes say of it is the better reason
        run_chain.note_end(places.work, segment.chain.generation, this.number, time.time())
    return status


def _put_folder_aside(segment: Segment) -> None:
    """Let a command that is started again begin with an empty folder, unless it keeps its own checkpoints there.

    Else one that looks for what it has saved would seem fast. What is there is kept, under another name.
    """
    places, script, before = segment.places, segment.run.strategy.script, segment.chain.attempts[:-1]
    if script is None or script.chained or not before or not places.folder.exists():
        return
    if not attempts.read(places.work, before[-1].number).end.get("asks_again"):
        places.folder.rename(places.work / f"folder-{before[-1].number}")


def _conclude_training(segment: Segment, status: int) -> int:
    """Turn what the trainer left behind into a state file or an exit status.

    Its records decide, not the status: torchrun reports failure where a signal came just after the last step.
    """
    last, records = segment.attempt.last, attempts.read(segment.places.work, segment.attempt.number)
    if records.end.get("end") == last:
        return _done(segment.places, segment.run, segment.chain, last)
    if reason := records.end.get("stopped"):
        return _stopped(segment, f"at step {records.end['end']} of {last}", reason)
    return _failed(segment, status, records.start if records else segment.attempt.found)


def _conclude_command(segment: Segment, status: int) -> int:
    """The same for a user's command, whose steps are known only as far as it tells them."""
    places, run = segment.places, segment.run
    end = attempts.read(places.work, segment.attempt.number).end
    if faults.of_ranks(places.work):  # the command's other processes are told to end because of it
        end = {}
    if end.get("done") and status == 0:
        return _done(places, run, segment.chain, run.length.total_steps)
    if reason := end.get("stopped"):
        return _stopped(segment, f"after step {end['end']}", reason)
    return _failed(segment, status, segment.attempt.found)


def _done(places: Places, run: Run, chain: RunChain, last: int) -> int:
    """Write the declared file that tells the workflow: the segment is done."""
    state = {"run": run.id, "step": last, "attempts": len(chain.attempts)}
    of_the_chain = {"generation": chain.generation, "code": chain.code, "strategy_source": chain.strategy_source}
    write_json(places.state(last), state | of_the_chain)
    return 0


def _stopped(segment: Segment, where: str, reason: str) -> int:
    return ending.interrupted(f"{segment.what}: stopped {where} ({reason})", deadline=reason == DEADLINE)


def _failed(segment: Segment, status: int, began: int) -> int:
    """The exit status where the processes left no word of an end. `began`: the step from which they went on."""
    work: Path = segment.places.work
    return faults.concluded(work, segment.what, status, came_further=saved_step(work) > began)
