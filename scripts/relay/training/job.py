"""One segment of a chain: the part of a run that one job does, around the processes that train.

The rolling directory (`results/checkpoints/{run}`) is unknown to Snakemake, which deletes the outputs of a job that
fails. `chain.json` there says to which chain the checkpoints belong, which code it runs and which attempts it had.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.errors import EndedItself, UserError
from relay.base.files import read_json, write_json
from relay.base.lock import exclusive
from relay.launch.launcher import USAGE, launch
from relay.run_folder import attempts, faults
from relay.run_folder.places import Places, dataset_folder
from relay.run_folder.snapshot import freeze
from relay.spec.identity import module_sources, source_digest, strategy_sources, task_sources
from relay.spec.run import Run
from relay.training.adoption import ADOPTED
from relay.training.changed_code import how_anew, may_change, source_today

ROOT = Path(__file__).resolve().parents[3]


def run_segment(places: Places, first: int, last: int, attempt: int) -> int:
    """Train steps `first` to `last` of the run and write its state file; returns the exit status of the job.

    0: done; 75: interrupted, worth a retry; 1: a fault of the program's own, recorded, which a retry (`attempt` > 1)
    only repeats in words. Raises UserError where the run is not declared or its chain cannot go on.
    """
    for path in (places.run / "run.json", places.run / "chain.json"):
        if not path.is_file():
            raise UserError(f"run {places.run_id}: {path} is missing; start the run through the workflow first")
    run = Run.read(places.run / "run.json")
    if (ended := faults.begin(places.work, f"run {run.id}", attempt)) is not None:
        return ended
    chain = _chain(places, run, first)
    first = max(first, (chain.get("adopted_from") or {}).get("step", 0))
    if first >= last:  # another run has done it
        _write_state(places, run, last, chain)
        return 0
    number = len(chain["attempts"]) + 1
    entry = {"number": number, "first": first, "last": last, "started": time.time()}
    chain["attempts"].append(entry)
    write_json(places.work / "chain.json", chain)

    dataset = dataset_folder(places.results, run.dataset)
    arguments = {
        "--spec": places.run / "run.json",
        "--dataset": dataset,
        "--work": places.work,
        "--first": first,
        "--last": last,
        "--attempt": number,
    }
    words = [str(part) for pair in arguments.items() for part in pair]
    status = launch(places.run / "run.json", "training.trainer", places.work, words, places.code / chain["code"])
    entry["ended"] = time.time()
    write_json(places.work / "chain.json", chain)
    return _conclude(places, run, last, number, status, chain)


def _chain(places: Places, run: Run, first: int) -> dict[str, Any]:
    """The chain that this segment belongs to; a new one where the declared start is newer than the checkpoints."""
    declared = read_json(places.run / "chain.json")["generation"]
    chain: dict[str, Any] | None = read_json(places.work / "chain.json")
    if chain is None or chain["generation"] != declared:
        if first > 0:
            raise UserError(
                f"run {run.id}: the checkpoints in {places.work} do not belong to this chain; "
                f"delete {places.run} to train it from the start"
            )
        adopted = read_json(places.work / ADOPTED) if chain is None else None
        if adopted is None:
            with exclusive(places.work):  # not under the feet of a trainer that an older start has left behind
                shutil.rmtree(places.work)
            places.work.mkdir(parents=True)
        chain = {"generation": declared, **_code_of_today(places, run), "adopted_from": adopted, "attempts": []}
        write_json(places.work / "chain.json", chain)
    elif first == 0 and may_change(places.work):  # the user may have mended what failed
        chain |= _code_of_today(places, run)
        write_json(places.work / "chain.json", chain)
    elif source_today(run) not in (None, chain["strategy_source"]):
        print(
            f"run {run.id}: its strategy's code has changed, and it goes on with the code that it began with; "
            f"`{how_anew(places)}` lets it start anew with today's",
            file=sys.stderr,
        )
    if not (places.code / chain["code"]).is_dir():
        raise UserError(
            f"run {run.id}: the snapshot {places.code / chain['code']} of its code is gone; "
            f"delete {places.run} to train it from the start with the code of today"
        )
    return chain


def _code_of_today(places: Places, run: Run) -> dict[str, str]:
    """Freeze today's code for the run: what its chain notes of it."""
    strategy_file = Path(run.strategy.file)
    modules = ("training.trainer", "strategies.base", f"datasets.kinds.{run.dataset.kind}")
    trains = {*module_sources(ROOT, *modules), *task_sources(ROOT, run.task.network)}
    return {
        "code": freeze(strategy_file, places.code).name,
        "strategy_source": source_digest(strategy_sources(strategy_file)),
        "training_source": source_digest(trains),
    }


def _conclude(places: Places, run: Run, last: int, number: int, status: int, chain: dict[str, Any]) -> int:
    """Turn what the processes left behind into a state file or an exit status."""
    lines = attempts.read(places.work, number)
    reached = lines[-1] if lines and "end" in lines[-1] else None
    # The records decide, not the status: torchrun reports failure where a signal came just after the last step.
    if reached and reached["end"] == last:
        _write_state(places, run, last, chain)
        return 0
    if reached and (reason := reached["stopped"]):
        what = f"run {run.id}: stopped at step {reached['end']} of {last} ({reason})"
        return ending.interrupted(what, planned=reason == "deadline")
    if status == 0:  # nobody has killed them
        faults.record(places.work, EndedItself("its processes ended by themselves in the middle of their work"))
    fault = faults.collect(places.work)
    if fault:
        told = f"run {run.id} failed: {fault['error']} (rank {fault['rank']})"
        return ending.fault(told, faults.remedy(fault))
    if status == USAGE and not lines:
        return ending.fault(f"run {run.id}: the launcher refuses its command line", "the log has its words")
    return ending.interrupted(
        f"run {run.id}: its processes ended without a word (status {status}): killed, a lost node, out of memory?"
    )


def _write_state(places: Places, run: Run, last: int, chain: dict[str, Any]) -> None:
    """The declared file that tells the workflow: the segment is done."""
    state = {"run": run.id, "step": last, "attempts": len(chain["attempts"])}
    write_json(places.state(last), state | {key: chain[key] for key in ("generation", "code", "strategy_source")})
