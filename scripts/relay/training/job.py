"""One segment of a chain: the part of a run that one job does, around the processes that train.

The rolling directory (`results/checkpoints/{run}`) is unknown to Snakemake, which deletes the outputs of a job that
fails. `chain.json` there says to which chain the checkpoints belong, which code it runs and which attempts it had.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
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
from relay.run_folder.attempts import Records
from relay.run_folder.places import Places, dataset_folder
from relay.run_folder.run_chain import Attempt, RunChain
from relay.run_folder.sound_checkpoints import refuse_others, saved_step, sound
from relay.spec.job import Job
from relay.spec.run import Run
from relay.spec.script import Script
from relay.training.continued import continued, declared, new_attempt, why_not

SAVING_SECONDS = 600.0  # what processes may need to save and end whose launcher was killed


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
    if first >= last or _is_passed(places.work, run, chain, last):
        return _done(places, run, chain, last)
    if run.strategy.script is None:
        verified.check(dataset_folder(places.results, run.dataset))

    this = new_attempt(places.work, chain, first, last, Job.read(places.run / "run.json"))
    if problem := why_not(chain, this):
        return ending.fault(f"run {run.id}: {problem}", "the log says more; the same call tries again")
    chain = replace(chain, attempts=(*chain.attempts, this))
    chain.write(places.work)
    return _concluded(places, run, chain, *_train(places, run, chain, minutes))


def _is_passed(work: Path, run: Run, chain: RunChain, last: int) -> bool:
    """Whether the run has gone on from step `last`, and come further: the segment was trained, and is asked for again.

    Its own checkpoint may be gone by now. A training from an older one would remove those that came after.
    """
    return any(True for _ in sound(work, last + 1, run.length.total_steps, chain.generation))


def _train(places: Places, run: Run, chain: RunChain, minutes: float | None) -> tuple[int, Records]:
    """Start the processes of the newest attempt; their status and records once all have ended, and that is noted.

    An attempt that has found nothing left to train is forgotten: it counts in no figure of the run.
    """
    this = chain.attempts[-1]
    arguments: dict[str, Any] = {"spec": places.run / "run.json", "work": places.work, "attempt": this.number}
    if run.strategy.script is None:
        role, dataset = "training.trainer", dataset_folder(places.results, run.dataset)
        arguments |= {"dataset": dataset, "first": this.first, "last": this.last}
    else:
        role = "script.process"
        arguments |= {"minutes": minutes} if minutes else {}
        _put_folder_aside(places, run.strategy.script, chain.attempts[:-1])
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    status = launch(places.run / "run.json", role, places.work, words, places.code / chain.code)
    if not (failed := bool(faults.of_ranks(places.work))):
        with suppress(Busy):  # its processes save and end, though their launcher was killed
            wait_until_free(places.work, SAVING_SECONDS)
    records = attempts.read(places.work, this.number)
    # Of a command on several nodes, the first one alone has records, and another one may have failed.
    ended = None if this.found and records.trained_nothing and not failed else time.time()
    with suppress(OSError):  # a full disk: what the processes say of it is the better reason
        run_chain.note_end(places.work, chain.generation, this.number, ended)
    return status, records


def _put_folder_aside(places: Places, script: Script, before: Sequence[Attempt]) -> None:
    """Let a command that is started again begin with an empty folder, unless it keeps its own checkpoints there.

    Else one that looks for what it has saved would seem fast. What is there is kept, under another name.
    """
    if script.chained or not before or not places.folder.exists():
        return
    if not attempts.read(places.work, before[-1].number).end.get("asks_again"):
        places.folder.rename(places.work / f"folder-{before[-1].number}")


def _concluded(places: Places, run: Run, chain: RunChain, status: int, records: Records) -> int:
    """Turn what the processes left behind into a state file or an exit status.

    The records of a training decide, not the status: torchrun reports failure where a signal came just after the last
    step. A command's steps are known only as far as it tells them.
    """
    this, end = chain.attempts[-1], records.end
    if run.strategy.script is None:
        done, where = end.get("end") == this.last, f"at step {end.get('end')} of {this.last}"
        began = records.start if records else this.found
    else:
        end = {} if faults.of_ranks(places.work) else end  # the command's other processes are told to end because of it
        done, where = status == 0 and end.get("done"), f"after step {end.get('end')}"
        began = this.found
    if done:
        return _done(places, run, chain, this.last)
    what = f"run {run.id}"
    if reason := end.get("stopped"):
        return ending.interrupted(f"{what}: stopped {where} ({reason})", deadline=reason == DEADLINE)
    return faults.concluded(places.work, what, status, came_further=saved_step(places.work) > began)


def _done(places: Places, run: Run, chain: RunChain, last: int) -> int:
    """Write the declared file that tells the workflow: the segment is done."""
    state = {"run": run.id, "step": last}
    of_the_chain = {"generation": chain.generation, "code": chain.code, "strategy_source": chain.strategy_source}
    write_json(places.state(last), state | of_the_chain)
    return 0
