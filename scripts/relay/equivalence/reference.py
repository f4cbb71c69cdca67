"""The reference: the gate's trials in one process and a plain PyTorch loop, which knows nothing of strategies.

Started by the launcher: `python -m relay.launch.worker equivalence.reference WORK --help`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from relay.base import options
from relay.base.errors import UserError
from relay.equivalence import float32, reference_file
from relay.equivalence.lock_step import LockStep
from relay.equivalence.made_with import made_with
from relay.equivalence.plain import deterministic
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import SLOWDOWNS, Trial, trials
from relay.equivalence.unprovable import unprovable
from relay.launch.imports import imported
from relay.process import machine
from relay.process.devices import gpu
from relay.spec import arithmetic
from relay.spec.run import Reference


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
    found = max(tried, key=lambda each: each.steps)  # the first of those with the most
    if found.steps == 0:
        rate, run = tried[-1].task.learning_rate(0), data.run
        raise UserError(
            f"reference of {run.task.name}, batch {run.batch.global_batch_size}, trial '{trial.name}': its first step "
            f"{tried[-1].ended}, even with the learning rate {rate:g} (a {SLOWDOWNS[-1]}th of its own): no strategy "
            "can be compared with it; give a smaller learning_rate, or normalise the targets of a large loss"
        )
    return {**found.result(), "slowdown": found.trial.slowdown}


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
    for name, found in trained.items():
        told = f"{name}: {found['steps']} steps, last loss {found['losses'][-1]:.4f}, rounding {found['rounding']}"
        print(f"reference {run.id}: {told}", flush=True)
    if given.beside:  # of strategies nothing is imported before
        imported("equivalence.gate").judge_beside(given.beside, given.dataset)
