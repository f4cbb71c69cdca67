"""What the run's own precision shows between steps: what it predicts, and whether a checkpoint holds it all.

BatchNorm is frozen, dropout is off, and options are those of the run, lossy ones too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from relay.equivalence.course import Course, Observed
from relay.equivalence.figures import difference, largest, most, scaled, scales, share, size
from relay.equivalence.journey import Held, Journey, short, travel
from relay.equivalence.plain import Plain, move, one_unit
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import AS_TRAINED, BEFORE, EXACT, LOSS_LIMITS, PREDICTED, SLOWDOWNS
from relay.equivalence.verdict import Part, Verdict
from relay.process.ranks import Ranks
from relay.spec.setting import TF32
from relay.task import batches
from relay.task.lowered import computed_in

# How far predictions may be from the reference's after so few steps, relative to the largest output: both round, each
# in its own order. A float32 network that is evaluated in bfloat16 misses by 1e-3 or more.
OUTPUT_LIMITS = {"fp32": 1e-4, **dict.fromkeys(TF32, 1e-2), "fp16": 2e-2, "bf16": 1e-1}
# In deep models sums in another order alone may move predictions farther: so many times as much is then allowed. Where
# that is more than the largest limit, nothing would be seen.
OUTPUTS_MARGIN, MOST_OF_OUTPUTS = 10, 0.3


def judge(verdict: Verdict, data: TrialData, folder: Path, ranks: Ranks, replicas: int, *, slowdown: int) -> None:
    """Train as a run does between its steps, and compare the two objects with each other, and their predictions with
    those of a plain training. Collective; rank 0 judges. `slowdown` divides the learning rate.
    """
    run, precision = data.run, data.run.computation.precision
    for divisor in SLOWDOWNS:  # the first at which the plain training is finite
        task = data.task(replace(AS_TRAINED, name="own precision", precision=precision, slowdown=slowdown * divisor))
        expected = _plainly(data, task, replicas) if ranks.rank == 0 else []
        wrong = (leaf.isnan() | leaf.isposinf() for leaf in expected)  # a mask's values are -inf
        finite = not ranks.gather(any(bool(each.any()) for each in wrong))[0]
        if finite:
            break
    first, second = (Course(data, ranks, task, lossy=bool(run.strategy.lossy)) for _ in range(2))
    journey = travel(first, second, folder)
    lost_of_ranks = ranks.collect(_lost(journey.saved, journey.loaded))
    observed = journey.observed(verdict, ranks)
    if any(scale for scale, _ in lost_of_ranks):
        verdict.problems.append("between steps: the loss's scale differs after a checkpoint was loaded")
    if ranks.rank == 0 and not finite:  # nothing equals what is no number
        verdict.unprovable = f"in {precision} the plain training is not finite after {BEFORE} steps"
    elif ranks.rank == 0:
        reporting = [objects for objects in observed if objects[0].replica.reports]
        reporting.sort(key=lambda objects: objects[0].replica.index)
        _resumed(verdict, data, journey, [figure for _, figure in lost_of_ranks], reporting)
        outputs = [leaf for first_seen, _ in reporting for leaf in first_seen.outputs[BEFORE]]
        _predicted(verdict, data, task, partial(_plainly, data, task, replicas), expected, outputs)
    ranks.wait_for_files()


def _lost(saved: Held, loaded: Held) -> tuple[bool, float]:
    """Whether the loss has another scale after loading, and how far this rank's part of the optimizer's state is off.

    That is the largest difference, relative to the largest value of its kind. Of what another rank holds after loading
    nothing is said here: the same in float64 shows whether all is there.
    """
    before, after = saved.optimizer, loaded.optimizer
    shared = [key for key in before if key in after and before[key].numel() and before[key].shape == after[key].shape]
    largest_of = scales(before)
    figures = (difference(after[key], before[key]) / largest_of[key] for key in shared)
    return saved.scaler != loaded.scaler, most(figures)


def _resumed(
    verdict: Verdict,
    data: TrialData,
    journey: Journey,
    lost_of_ranks: Sequence[float],
    reporting: Sequence[tuple[Observed, Observed]],
) -> None:
    """Compare the object that has loaded the checkpoint with the one that has saved it."""
    precision = data.run.computation.precision
    saved, loaded = journey.saved.model, journey.loaded.model
    if saved.keys() != loaded.keys():
        verdict.problems.append(f"between steps: a checkpoint's model has other names, in {precision}")
        return
    figure = most([largest((loaded[name], tensor) for name, tensor in saved.items()), *lost_of_ranks])
    what = f"largest difference of parameters or optimizer state after a checkpoint was loaded, in {precision}"
    verdict.add(Part("own precision", "state", what, figure, EXACT))
    curves = [(first.losses[BEFORE:], second.losses) for first, second in reporting]
    unbroken, resumed = torch.tensor(curves, dtype=torch.float64).mean(0)
    what = f"largest loss difference between going on and loading a checkpoint, in {precision}"
    verdict.add(Part("own precision", "resumed", what, scaled(resumed, unbroken), LOSS_LIMITS[data.computed_in]))


def _predicted(
    verdict: Verdict,
    data: TrialData,
    task: TrialTask,
    plainly: Callable[..., list[torch.Tensor]],
    expected: list[torch.Tensor],
    outputs: list[torch.Tensor],
) -> None:
    """Compare a prediction with the plain training's, in the same precision; `plainly` makes such another one."""
    precision, lossy = data.run.computation.precision, data.run.strategy.lossy
    lower = [
        (mine, its) for mine, its in zip(outputs, expected, strict=False) if mine.dtype.itemsize < its.dtype.itemsize
    ]
    for mine, its in lower[:1]:
        verdict.problems.append(
            f"low precision: in {precision} it predicts in {short(mine.dtype)}; expected is {short(its.dtype)}"
        )
    figure = _relative(outputs, expected)
    limit = max(OUTPUT_LIMITS[data.computed_in], sum(lossy.values()))
    if not figure <= limit:  # a model may turn to fewer bits for predictions alone
        limit = max(limit, OUTPUT_LIMITS[computed_in(task, data.device, evaluated=True)])
    if not figure <= limit:  # measured only where it matters: trainings that are as right
        rounding = most(_relative(plainly(**other), expected) for other in ({"pieces": 2}, {"moved": True}))
        limit = max(limit, OUTPUTS_MARGIN * rounding)
        if limit > MOST_OF_OUTPUTS:
            reason = f"rounding alone moves what it predicts by {rounding:.0e}"
            verdict.notes.append(f"own precision: {reason}: not compared")
            return
    what = f"largest difference of what it predicts in {precision}, relative to the largest output"
    verdict.add(Part("own precision", "outputs", what, figure, limit))


def _relative(outputs: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest output; infinite where there are other outputs."""
    if len(outputs) != len(expected):
        return math.inf
    return share(most(map(difference, outputs, expected)), most(map(size, expected)))


def _plainly(
    data: TrialData, task: TrialTask, replicas: int, pieces: int = 1, *, moved: bool = False
) -> list[torch.Tensor]:
    """What a plain training predicts for each replica's slice, which may be padded less than the whole batch.

    Each batch is trained in so many pieces. With `moved`, its parameters begin one unit in the last place away.
    """
    plain = Plain.of(task, data.device)
    if moved:
        move(plain.model, data.run.seed, one_unit)
    for step in range(BEFORE):
        plain.step([batches.chunks(data.batch(task, step), pieces)], task.learning_rate(step))
    slices = (data.batch(task, PREDICTED, each, replicas) for each in range(replicas))
    return [leaf for each in slices for leaf in plain.predicted(each)]
