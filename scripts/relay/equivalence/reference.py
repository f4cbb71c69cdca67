"""The reference: the gate's trials in one process and a plain PyTorch loop, which knows nothing of strategies.

Trainings that no division of a batch leaves the same have none: what equality cannot mean is said, not guessed.

Started by the launcher: `python -m relay.launch.worker equivalence.reference WORK --help`.
"""

import io
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from relay import strategies
from relay.base import options
from relay.base.errors import UserError
from relay.base.files import CHECKSUM_BYTES, has_checksum, with_checksum, write_bytes
from relay.datasets.manifest import digest
from relay.equivalence.figures import distance, norm, share
from relay.equivalence.lock_step import LockStep
from relay.equivalence.plain import declared_parts, deterministic
from relay.equivalence.trial_task import Identified, TrialData
from relay.equivalence.trials import FROM_REFERENCE, OWN_OPTIMIZER, SLOWDOWNS, Trial, trials
from relay.process import machine
from relay.process.devices import gpu
from relay.process.generators import drawn_from
from relay.process.ranks import Ranks
from relay.spec import arithmetic
from relay.spec.run import Reference
from relay.spec.setting import TF32
from relay.task import batches
from relay.task.mean_loss import LIMITS, Dependent, NotFinite, check_gradients, mean_over_samples
from relay.task.places import mistake

FIRST_STEP = Trial(name="algorithm", precision="fp64", steps=1)
# Of float32's products: relative, as L2 norms. Rounding in float32 gives 1e-6 or less, products in bfloat16 1e-3 or
# more.
PRODUCTS_LIMIT = 1e-5
COMPUTING = ("torch", "cuda")  # versions that a reference and its gates share


def main(arguments: list[str]) -> None:
    """Parse the command line, train the reference and write it."""
    parser = options.parser(__doc__, "spec", "output", "dataset", prog="equivalence.reference")
    given = parser.parse_args(arguments)

    run = Reference.read(given.spec)
    arithmetic.check(f"{run.kind} {run.id}", run.place)
    machine.set_threads(run.shape.threads, run.shape.interop_threads)
    machine.set_precision(run.computation.precision)
    deterministic()
    data = TrialData(run, given.dataset, gpu(0) if run.shape.device == "cuda" else torch.device("cpu"))
    write(given.output, whole := of_all_trials(data))
    if reason := whole.get("unprovable"):
        print(f"reference {run.id}: {reason}", flush=True)
        return
    for name, result in ((name, result) for name, result in whole.items() if "losses" in result):
        summary = f"{result['steps']} steps, last loss {result['losses'][-1]:.4f}, rounding {result['rounding']}"
        print(f"reference {run.id}: {name}: {summary}", flush=True)


def of_all_trials(data: TrialData) -> dict[str, Any]:
    """What gates compare with: the result of each trial, by its name; or `unprovable`, why there is none.

    Raises UserError as `unprovable`, `check_float32` and `train` do.
    """
    here = {"made_with": made_with(data.folder, data.device)}
    if reason := unprovable(data):
        return {**here, "unprovable": reason}
    check_float32(data.run.computation.precision, data.device)
    results: dict[str, Any] = {
        trial.name: train(trial, data) for trial in trials(data.run, data.computed_in, lossy=True)
    }
    if (own := results.get(OWN_OPTIMIZER.name)) and OWN_OPTIMIZER.as_far_as(own).limit_of("parameters") is None:
        results[OWN_OPTIMIZER.name] = train(replace(OWN_OPTIMIZER, steady=True), data)
    return {**here, "computed_in": data.computed_in, **results}


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
    model.to(data.looks_on)
    batch = batches.moved(Identified(data.first, data.indices(0)[: batches.count(data.first)]), data.looks_on)
    try:
        with task.computing():
            figure = mean_over_samples(task, model, batch)
            if figure <= LIMITS[task.dtype]:
                return check_gradients(task, model, batch)
    except Dependent as error:
        return str(error)
    except NotFinite as error:
        why = task.split("train").not_finite(batch.data, batch.ids) or "; allowed: a finite number"
        raise mistake(type(task.own), "loss", f"{error}{why}") from None
    what = f"a batch is {figure:.1e} away from the weighted mean of its parts' losses"
    if figure == math.inf:
        what = "a part of a batch is not finite, that of the whole batch is"
    return f"the loss is no mean over samples: that of {what}, so that a divided batch is another training"


def train(trial: Trial, data: TrialData, parts: int = 1, pieces: int = 0) -> dict[str, Any]:
    """Train one trial, unscaled, as far as rounding allows, at the first learning rate that leaves enough steps.

    Where none does, the one counts that leaves most. A batch is computed in so many parts, and rounding is measured in
    `pieces` of each part, as `LockStep` has it. Returns what `LockStep.result` does, with the `slowdown` of
    the learning rate. Raises UserError where not one step can be compared.
    """
    tried: list[LockStep] = []
    for slowdown in SLOWDOWNS:
        tried.append(LockStep(replace(trial, slowdown=slowdown), data, parts, pieces))
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


def of_own_batch(trial: Trial, data: TrialData, ranks: Ranks) -> dict[str, Any]:
    """What `train` returns, of a trial at an own batch, which rank 0 trains: so all batch sizes share one reference.

    Collective. The other ranks only learn how many steps are compared, and at which learning rate. The batch is
    computed in as many equal parts as the strategy has devices for it, so that it needs no more memory at once.
    Rounding is measured in halves of a part, and as the strategy works through its slice.
    """
    run = data.run
    needs = strategies.load(run.strategy.name).requirements
    devices = run.shape.devices if "samples" in run.strategy.divides else 1
    parts = equal_parts(run.batch.global_batch_size, needs.slices(run), devices)
    pieces = declared_parts(run, needs)
    trained = train(trial, data, parts, pieces) if ranks.rank == 0 else {}
    shared = (*FROM_REFERENCE, "ended", "footprint", "work")
    decided: dict[str, Any] = ranks.gather({name: value for name, value in trained.items() if name in shared})[0]
    return decided | trained


def equal_parts(samples: int, replicas: int, devices: int) -> int:
    """In how many parts a batch is computed: at most one for each device, as many for each replica, all equal."""
    most = max(1, devices // replicas)
    return replicas * max(each for each in range(1, most + 1) if samples // replicas % each == 0)


# This machine's arithmetic


def check_float32(precision: str, device: torch.device) -> None:
    """Raises UserError where products in float32 are further from those in float64 than rounding explains.

    A variable of the environment can lower every process alike. Then no comparison of two of them shows it. A model's
    own training would not tell: in a deep one, rounding alone may move an update by a fifth.
    There is nothing to check for runs in float64, which use no float32, and in tf32, which lower it themselves.
    """
    if precision == "fp64" or precision in TF32:
        return
    products, exact = (_products(device, dtype) for dtype in (torch.float32, torch.float64))
    figure = max(share(distance([pair]), norm([pair[1]])) for pair in zip(products, exact, strict=True))
    if figure <= PRODUCTS_LIMIT:
        return
    variables = arithmetic.variables_set(os.environ)
    cause = f"the environment has {variables}: unset what lowers it" if variables else "its cause is unknown"
    raise UserError(
        f"the reference: products in float32 differ by {figure:.1e} from those in float64; allowed is "
        f"{PRODUCTS_LIMIT:.0e}. This machine's float32 arithmetic is not float32; {cause}"
    )


def _products(device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """A linear layer's and a convolution's results and gradients, of the same numbers in every type."""
    with drawn_from(0):
        shapes = ((256, 384), (192, 384), (16, 16, 24, 24), (32, 16, 3, 3))
        given = [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]
    rows, weights, images, kernels = given
    results = [F.linear(rows, weights), F.conv2d(images, kernels, padding=1)]
    loss = torch.stack([result.square().sum() for result in results]).sum()
    return [*(result.detach() for result in results), *torch.autograd.grad(loss, given)]


# Its file: torch's own reader takes changed bytes for numbers, so that it begins with a checksum


def write(file: Path, trained: dict[str, Any]) -> None:
    """Write a reference, all of it or none. Raises OSError."""
    buffer = io.BytesIO()
    torch.save(trained, buffer)
    write_bytes(file, with_checksum(buffer.getvalue()))


def read(file: Path) -> dict[str, Any]:
    """A reference. Raises UserError where its file is damaged: that says nothing of a strategy."""
    try:
        why = "" if has_checksum(file) else "its bytes were changed, or another version wrote it"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise UserError(f"{file}: is damaged ({why}); remove it, and start the same call again")
    trained: dict[str, Any] = torch.load(io.BytesIO(file.read_bytes()[CHECKSUM_BYTES:]), weights_only=True)
    return trained


def made_with(dataset: Path, device: torch.device) -> dict[str, Any]:
    """What a reference, or a verdict, is made with: versions of this process's libraries, and the dataset's digest."""
    return {"versions": machine.versions(device), "dataset": digest(dataset)}


def check_made_with(reference: Mapping[str, Any], here: Mapping[str, Any], file: Path) -> None:
    """Raise UserError where a reference was made with other libraries, or other data, than its gate has."""
    there = reference["made_with"]
    pairs = {name: (there["versions"][name], here["versions"][name]) for name in COMPUTING}
    pairs["dataset"] = (there["dataset"], here["dataset"])
    if differing := [name for name, (then, now) in pairs.items() if then != now]:
        name = differing[0]
        raise UserError(
            f"{file}: was made with {name} {pairs[name][0]}, here it is {pairs[name][1]}; "
            f"`rm -r {file.parent}` lets it be made again"
        )
