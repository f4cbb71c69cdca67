"""The reference: the gate's trials in one process and a plain PyTorch loop, which knows nothing of strategies.

Trainings that no division of a batch leaves the same have none: what equality cannot mean is said, not guessed.

Started by the launcher: `python -m relay.launch.worker equivalence.reference WORK --help`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from relay.base import options
from relay.base.errors import UserError
from relay.equivalence import float32, reference_file
from relay.equivalence.lock_step import LockStep
from relay.equivalence.plain import deterministic
from relay.equivalence.reference_file import made_with
from relay.equivalence.trial_task import Identified, TrialData
from relay.equivalence.trials import SLOWDOWNS, Trial, trials
from relay.launch.worker import imported
from relay.process import machine
from relay.process.devices import gpu
from relay.spec import arithmetic
from relay.spec.run import Reference
from relay.task import batches, finite
from relay.task.mean_loss import LIMITS, Dependent, NotFinite, check_gradients, mean_over_samples
from relay.task.places import mistake

FIRST_STEP = Trial(name="algorithm", precision="fp64", steps=1)


def unprovable(data: TrialData) -> str | None:
    """Why strategies cannot be compared with one process, in a sentence; None where they can.

    Raises UserError where the loss of the first batch is not finite: that proves nothing about it.
    """
    if reason := data.run.task.card.unrepeatable:
        return reason
    task = data.task(FIRST_STEP)
    model = task.model()
    if reason := task.stilled.unrepeatable:
        return reason
    batch = Identified(data.first, data.indices(0)[: batches.count(data.first)])
    try:
        with task.computing():
            figure = mean_over_samples(task, model, batch)
            if figure <= LIMITS[task.dtype]:
                return check_gradients(task, model, batch)
    except Dependent as error:
        return str(error)
    except NotFinite as error:
        why = finite.reason(batch.data, batch.ids, task.split("train")) or "; allowed: a finite number"
        raise mistake(type(task.own), "loss", f"{error}{why}") from None
    what = f"a batch is {figure:.1e} away from the weighted mean of its parts' losses"
    if figure == math.inf:
        what = "a part of a batch is not finite, that of the whole batch is"
    return f"the loss is no mean over samples: that of {what}, so that a divided batch is another training"


def train(trial: Trial, data: TrialData, parts: int = 1, divisions: Sequence[int] = ()) -> dict[str, Any]:
    """Train one trial, unscaled, as far as rounding allows, at the first learning rate that leaves enough steps.

    Where none does, the one counts that leaves most. A batch is computed in so many parts, and rounding is measured in
    these `divisions` of each part, as `LockStep` has it. Returns what `LockStep.result` does, with the `slowdown` of
    the learning rate. Raises UserError where not one step can be compared.
    """
    tried: list[LockStep] = []
    for slowdown in SLOWDOWNS:
        tried.append(LockStep(replace(trial, slowdown=slowdown), data, parts, divisions))
        tried[-1].train()
        if tried[-1].steps >= min(trial.least_steps, trial.steps):
            break
    best = max(tried, key=lambda each: each.steps)  # the first of those with the most
    if best.steps == 0:
        rate, run = tried[-1].task.learning_rate(0), data.run
        raise UserError(
            f"reference of {run.task.name}, batch {run.batch.global_batch_size}, trial '{trial.name}': its first step "
            f"{tried[-1].ended}, even with the learning rate {rate:g} (a {SLOWDOWNS[-1]}th of its own): no strategy "
            "can be compared with it; give a smaller learning_rate, or normalise the targets of a large loss"
        )
    return {**best.result(), "slowdown": best.trial.slowdown}


def main(arguments: list[str]) -> None:
    """Parse the command line, train the reference and write it."""
    parser = options.parser(__doc__, "spec", "output", "dataset", prog="equivalence.reference")
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="as of a gate, of one process")
    given = parser.parse_args(arguments)

    run = Reference.read(given.spec)
    arithmetic.check(f"{run.kind} {run.id}", run.place)
    machine.set_threads(run.shape.threads, run.shape.interop_threads)
    machine.set_precision(run.computation.precision)
    deterministic()
    data = TrialData(run, given.dataset, gpu(0) if run.shape.device == "cuda" else torch.device("cpu"))
    here = {"made_with": made_with(given.dataset, data.device)}
    if reason := unprovable(data):
        reference_file.write(given.output, {**here, "unprovable": reason})
        print(f"reference {run.id}: {reason}", flush=True)
        return
    float32.check(run.computation.precision, data.device)
    trained: dict[str, dict[str, Any]] = {trial.name: train(trial, data) for trial in trials(run, lossy=True)}
    reference_file.write(given.output, {**trained, **here})
    for name, result in trained.items():
        summary = f"{result['steps']} steps, last loss {result['losses'][-1]:.4f}, rounding {result['rounding']}"
        print(f"reference {run.id}: {name}: {summary}", flush=True)
    if given.beside:  # of strategies nothing is imported before
        imported("equivalence.gate").judge_beside(given.beside, given.dataset)
