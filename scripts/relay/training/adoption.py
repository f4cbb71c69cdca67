"""A run that goes on from another one's checkpoint: under another strategy, or on another number of devices.

The checkpoint goes into the rolling directory of a run that is planned and has not begun; its first segment records
in the chain from where it goes on. Needs no torch.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from relay.base.errors import UserError
from relay.base.files import remove, write_json
from relay.base.lock import exclusive
from relay.chain.sealed import MANIFEST, Folder, manifest, publish, remove_leftovers
from relay.chain.writers import make_own
from relay.run_folder import proof_notes, run_chain
from relay.run_folder.places import Places
from relay.run_folder.sound_checkpoints import damage, sound
from relay.spec.run import OwnBatch, Run

ADOPTED = "adopted.json"
# What has to be the same for a step of one run to be the same step of the other.
SHARED: Mapping[str, Callable[[Run], Any]] = {
    "task": lambda run: run.task,
    "dataset": lambda run: run.dataset,
    "global_batch_size": lambda run: run.batch.global_batch_size,
    "seed": lambda run: run.seed,
}


def adopt(results: Path, source_id: str, run_id: str, *, dry: bool = False) -> int:
    """Hand the newest sound checkpoint of run `source_id` to run `run_id`; returns its step.

    With `dry`, only say whether that could be done. Raises UserError where it cannot, and Busy where one of them is
    being trained.
    """
    places, source_places = Places(results, run_id), Places(results, source_id)
    run, source = _declared(places), _declared(source_places)
    _check_same(source, run)
    begun, declared = run_chain.begun(places.run), run_chain.declared(places.run)
    if (places.work / run_chain.CHAIN).exists() or (begun or "") == declared:
        raise UserError(
            f"run {run.id}: it has begun, and goes on from its own checkpoints; "
            f"delete {places.run} and {places.work} to let it go on from another run's"
        )
    if not source_places.work.is_dir():
        raise UserError(f"run {source.id}: {source_places.work} is missing: it was never trained; train it first")
    with exclusive(source_places.work):  # a trainer would remove what is copied here
        total = run.length.total_steps
        step = next(sound(source_places.work, 1, total), None)
        if step is None:
            raise UserError(f"run {source.id}: no sound checkpoint in {source_places.work} up to step {total}")
        if step == total:
            raise UserError(
                f"run {run.id}: total_steps is {step}, and so far run {source.id} has come already: "
                "nothing is left to train; plan more epochs"
            )
        if not dry:
            make_own(places.work)
            with exclusive(places.work):
                _take(source_places, places, step)
                write_json(places.work / ADOPTED, _origin(source, source_places, step))
    return step


def against(results: Path, source_id: str, step: int) -> list[str]:
    """What is found against a run, and the runs that it went on from: who adopts its checkpoint inherits that."""
    source_places = Places(results, source_id)
    return proof_notes.inherited(results, _origin(_declared(source_places), source_places, step))


def _declared(places: Places) -> Run:
    path = places.run / "run.json"
    if not path.is_file():
        raise UserError(
            f"run {places.run_id}: {path} is missing; allowed: an id below results/runs, where `snakemake record_plan` "
            "writes down all that is planned"
        )
    return Run.read(path)


def _check_same(source: Run, run: Run) -> None:
    """Raises UserError where the two train different things, or parameters of different types."""
    if source.id == run.id:
        raise UserError(f"run {run.id}: it goes on from its own checkpoints by itself; name two runs")

    def refuse(differs: str, allowed: str) -> NoReturn:
        raise UserError(f"run {run.id}: {differs} in run {source.id}; allowed: {allowed}")

    for name, of in SHARED.items():
        given, wanted = of(source), of(run)
        if given != wanted:
            refuse(_difference(name, given, wanted), "the same in both")
    kind, steps, theirs = run.task.schedule["kind"], run.length.total_steps, source.length.total_steps
    if kind in ("cosine", "scheduler") and steps != theirs:
        why = f"the same in both, because the learning rate of a step follows from them ({kind})"
        refuse(f"total_steps is {steps}, {theirs}", why)
    one, other = run.computation.precision, source.computation.precision
    if (one == "fp64") != (other == "fp64"):
        refuse(f"precision is {one}, {other}", "fp64 in both, or in none")


def _difference(name: str, given: Any, wanted: Any) -> str:
    """What differs first: of a task or a dataset, one member."""
    if not hasattr(given, "__dataclass_fields__"):
        return f"{name} is {wanted}, {given}"
    inner = next(member for member in vars(given) if getattr(given, member) != getattr(wanted, member))
    return f"{name}.{inner} is {getattr(wanted, inner)}, {getattr(given, inner)}"


def _take(source_places: Places, places: Places, step: int) -> None:
    """Copy a checkpoint; complete or absent, as when it was saved."""
    folder = Folder(places.work)
    partial = folder.partial("adopted", step)
    (places.work / ADOPTED).unlink(missing_ok=True)
    remove_leftovers(places.work)
    for old in folder.places():  # of an earlier adoption
        remove(old)
    try:
        shutil.copytree(Folder(source_places.work).place(step), partial)
    except OSError as error:
        raise UserError(f"run {places.run_id}: the checkpoint cannot be copied: {error}") from None
    if problem := damage(partial, of_run=source_places.run_id):
        raise UserError(f"run {places.run_id}: the copy of the checkpoint is damaged ({problem}); try again")
    write_json(partial / MANIFEST, manifest(partial) | {"run": places.run_id, "chain": None})
    publish(partial, folder.place(step))


def _origin(source: Run, source_places: Places, step: int) -> dict[str, Any]:
    """What the chain keeps of where it goes on from; `adopted_from` of that run's own chain in turn."""
    chain = run_chain.read(source_places.work)
    recorded = chain.recorded(source_places.work) if chain else []
    facts = next((records.ranks[0] for _, records in reversed(recorded) if records), {})
    return {
        "run": source.id,
        "step": step,
        "strategy": source.strategy.name,
        "world_size": source.shape.world_size,
        "setting": source.setting_id,
        "own_batch": asdict(OwnBatch.of(source)),
        **proof_notes.origin(source_places.run, chain, facts),
        "precision": source.computation.precision,
        "code": chain.code if chain else None,
        "adopted_from": chain.adopted_from if chain else None,
        "time": time.time(),
    }
