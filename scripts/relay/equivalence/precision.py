"""What the run's own precision shows between steps: what it predicts, and whether a checkpoint holds it all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from relay.equivalence.course import BEFORE, PREDICTED, Held, Journey, Seen
from relay.equivalence.dtypes import fewer_bits
from relay.equivalence.figures import difference, largest, leaves_of, most, scaled, scales, share, size
from relay.equivalence.plain import Plain, one_unit
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import EXACT, LOSS_LIMITS
from relay.equivalence.verdict import Part, Verdict
from relay.spec.run import Training
from relay.spec.setting import TF32
from relay.task import batches

# How far predictions may be from the reference's after so few steps, relative to the largest output: both round, each
# in its own order. A float32 network that is evaluated in bfloat16 misses by 1e-3 or more.
OUTPUT_LIMITS = {"fp32": 1e-4, **dict.fromkeys(TF32, 1e-2), "fp16": 2e-2, "bf16": 1e-1}
# In deep models sums in another order alone may move predictions farther: so many times as much is then allowed. Where
# that is more than the largest limit, nothing would be seen.
OUTPUTS_MARGIN, MOST_OF_OUTPUTS = 10, 0.3


def lost(saved: Held, loaded: Held) -> tuple[bool, float]:
    """Whether the loss has another scale after loading, and how far this rank's part of the optimizer's state is off.

    That is the largest difference, relative to the largest value of its kind. Of what another rank holds after loading
    nothing is said here: the same in float64 shows whether all is there.
    """
    before, after = saved.optimizer, loaded.optimizer
    shared = [key for key in before if key in after and before[key].numel() and before[key].shape == after[key].shape]
    largest_of = scales(before)
    figures = (difference(after[key], before[key]) / largest_of[key] for key in shared)
    return saved.scaler != loaded.scaler, most(figures)


def predicted(data: TrialData, task: TrialTask) -> list[torch.Tensor]:
    """What the plain training predicts when the checkpoint is saved."""
    return _plainly(data, task, pieces=1)


def finite(outputs: list[torch.Tensor]) -> bool:
    """Whether all of these numbers are finite."""
    return all(bool(leaf.isfinite().all()) for leaf in outputs)


def compare(
    verdict: Verdict,
    run: Training,
    data: TrialData,
    task: TrialTask,
    expected: list[torch.Tensor],
    journey: Journey,
    lost_of_ranks: Sequence[tuple[bool, float]],
    observed: Sequence[tuple[Seen, Seen]],
) -> None:
    """Compare the two objects with each other, and what the first one predicts with what is `expected`."""
    if any(scale for scale, _ in lost_of_ranks):
        verdict.problems.append("between steps: the loss's scale is another one after a checkpoint was loaded")
    if not finite(expected):
        verdict.unprovable = f"in {run.computation.precision} the plain training is not finite after {BEFORE} steps"
        return  # nothing equals what is no number
    reporting = [objects for objects in observed if objects[0].replica.reports]
    reporting.sort(key=lambda objects: objects[0].replica.index)
    _resumed(verdict, run, journey, [figure for _, figure in lost_of_ranks], reporting)
    _predicted(verdict, run, data, task, expected, batches.joined([first.outputs[BEFORE] for first, _ in reporting]))


def _resumed(
    verdict: Verdict,
    run: Training,
    journey: Journey,
    lost_of_ranks: Sequence[float],
    reporting: Sequence[tuple[Seen, Seen]],
) -> None:
    """Compare the object that has loaded the checkpoint with the one that has saved it."""
    precision, saved, loaded = run.computation.precision, journey.saved.model, journey.loaded.model
    if saved.keys() != loaded.keys():
        verdict.problems.append(f"between steps: a checkpoint's model has other names, in {precision}")
        return
    figure = most([largest((loaded[name], tensor) for name, tensor in saved.items()), *lost_of_ranks])
    what = f"largest difference of parameters or optimizer state after a checkpoint was loaded, in {precision}"
    verdict.add(Part("own precision", "state", what, figure, EXACT))
    curves = [(first.losses[BEFORE:], second.losses) for first, second in reporting]
    unbroken, resumed = torch.tensor(curves, dtype=torch.float64).mean(0)
    what = f"largest loss difference between going on and loading a checkpoint, in {precision}"
    verdict.add(Part("own precision", "resumed", what, scaled(resumed, unbroken), LOSS_LIMITS[precision]))


def _predicted(
    verdict: Verdict,
    run: Training,
    data: TrialData,
    task: TrialTask,
    expected: list[torch.Tensor],
    outputs: list[torch.Tensor],
) -> None:
    """Compare a prediction with the plain training's, in the same precision."""
    precision = run.computation.precision
    lower = [(mine, its) for mine, its in zip(outputs, expected, strict=False) if fewer_bits(mine.dtype, its.dtype)]
    for mine, its in lower[:1]:
        verdict.problems.append(
            f"low precision: in {precision} it predicts in {str(mine.dtype).removeprefix('torch.')}; expected is "
            f"{str(its.dtype).removeprefix('torch.')}"
        )
    figure = _relative(outputs, expected)
    limit = max(OUTPUT_LIMITS[precision], sum(run.strategy.lossy.values()))
    if not figure <= limit:  # measured only where it matters: trainings that are as right
        halves, moved = _plainly(data, task, pieces=2), _plainly(data, task, pieces=1, moved=True)
        rounding = most((_relative(halves, expected), _relative(moved, expected)))
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


def _plainly(data: TrialData, task: TrialTask, pieces: int, *, moved: bool = False) -> list[torch.Tensor]:
    """What a plain training predicts after these steps, each batch in so many pieces.

    With `moved`, its parameters begin one unit in the last place away.
    """
    plain = Plain.of(task, data.device)
    if moved:
        plain.move(data.run.seed, one_unit)
    for step in range(BEFORE):
        plain.step([batches.chunks(data.batch(task, step), pieces)], task.learning_rate(step))
    return leaves_of(plain.predict(data.batch(task, PREDICTED)), task.along)
