"""What the run's own precision shows between steps: types, what it predicts, and whether a checkpoint holds it all.

Dropout is off and BatchNorm frozen, as in all trials in this precision. Options are those of the run, lossy ones too.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from relay.equivalence.course import Course
from relay.equivalence.dtypes import fewer_bits, lowered
from relay.equivalence.figures import difference, largest
from relay.equivalence.plain import Plain
from relay.equivalence.trials import EXACT, LOSS_LIMITS, Trial, TrialData, TrialTask
from relay.equivalence.verdict import Part, Verdict
from relay.process.ranks import Ranks
from relay.spec.run import Training
from relay.spec.setting import TF32
from relay.strategies.base import Strategy

BEFORE, AFTER = 3, 2
PREDICTED = BEFORE
# How far predictions may be from the reference's after so few steps, relative to the largest output: both round, each
# in its own order. A float32 network that is evaluated in bfloat16 misses by 1e-3 or more.
OUTPUT_LIMITS = {"fp32": 1e-4, **dict.fromkeys(TF32, 1e-2), "fp16": 2e-2, "bf16": 1e-1}


def judge(verdict: Verdict, run: Training, data: TrialData, folder: Path, ranks: Ranks, slowdown: int) -> None:
    """Train, predict, save, and go on both in this object and in a new one. Collective; rank 0 judges.

    `folder` is for the checkpoint; all ranks see it. `slowdown` divides the learning rate.
    """
    precision = run.computation.precision
    trial = Trial(
        name="own precision",
        what="",
        precision=precision,
        steps=BEFORE + AFTER,
        limit=0,
        compares=(),
        slowdown=slowdown,
    )
    task = TrialTask.in_trial(run, trial, scale=1.0)
    lossy = bool(run.strategy.lossy)
    first = Course(run, data, ranks, task, lossy=lossy)
    strategy = first.build()
    for step in first.steps(0, BEFORE + AFTER):
        if step == BEFORE - 1:
            outputs = first.outputs(PREDICTED)
            held = _state(strategy)
            writing, drawn = first.save(folder / precision)
            writing.result()
    ranks.barrier()
    types = lowered(strategy)
    second = Course(run, data, ranks, task, lossy=lossy)
    resumed = second.load(folder / precision, drawn, strategy.measured)
    found = _state(resumed)
    for _ in second.steps(BEFORE, BEFORE + AFTER):
        pass
    types += lowered(resumed)
    told = ranks.collect((first.seen, second.seen, strategy.replica, outputs, types, held[1] == found[1]))
    ranks.barrier()
    if ranks.rank != 0:
        return
    shutil.rmtree(folder / precision, ignore_errors=True)
    problems = dict.fromkeys(line for rank in told for seen in rank[:2] for line in seen.problems)
    verdict.problems += [line for line in problems if line not in verdict.problems]
    if not all(rank[5] for rank in told):
        verdict.problems.append("between steps: the loss's scale is another one after a checkpoint was loaded")
    if lines := list(dict.fromkeys(line for rank in told for line in rank[4])):
        verdict.problems.append(f"low precision: in {precision}: {lines[0]}")
    reporting = sorted((rank for rank in told if rank[2].reports), key=lambda rank: rank[2].index)
    _resumed(verdict, run, held[0], found[0], [(rank[0].losses, rank[1].losses) for rank in reporting])
    _predicted(verdict, run, data, task, torch.cat([rank[3] for rank in reporting]))


def _state(strategy: Strategy) -> tuple[dict[str, torch.Tensor], Any]:
    """The model, complete on rank 0 alone, and the scaler's state. Collective."""
    whole = {name: tensor.clone() for name, tensor in strategy.whole_model().items()}
    return whole, strategy.scaler.state_dict() if strategy.scaler else None


def _resumed(
    verdict: Verdict,
    run: Training,
    held: dict[str, torch.Tensor],
    found: dict[str, torch.Tensor],
    curves: list[tuple[list[float], list[float]]],
) -> None:
    """Compare the object that has loaded the checkpoint with the one that has saved it."""
    precision = run.computation.precision
    if held.keys() != found.keys():
        verdict.problems.append(f"between steps: a checkpoint's model has other names, in {precision}")
        return
    figure = largest([(found[name], tensor) for name, tensor in held.items()])
    what = f"largest parameter difference after a checkpoint was loaded, in {precision}"
    verdict.add(Part("own precision", "state", what, figure, EXACT))
    unbroken = torch.tensor([mine[BEFORE:] for mine, _ in curves], dtype=torch.float64).mean(0)
    resumed = torch.tensor([yours for _, yours in curves], dtype=torch.float64).mean(0)
    what = f"largest loss difference between going on and loading a checkpoint, in {precision}"
    limit = LOSS_LIMITS.get(precision, 1e-5)
    verdict.add(Part("own precision", "resumed", what, difference(resumed, unbroken), limit))


def _predicted(verdict: Verdict, run: Training, data: TrialData, task: TrialTask, outputs: torch.Tensor) -> None:
    """Compare a prediction with the plain training's, in the same precision."""
    precision = run.computation.precision
    plain = Plain.of(task, data.device)
    for step in range(BEFORE):
        plain.step([[next(data.batches(task, step + 1, 0, 1, step))]], task.learning_rate(step))
    expected = plain.predict(next(data.batches(task, PREDICTED + 1, 0, 1, PREDICTED))[0]).cpu()
    if fewer_bits(outputs.dtype, expected.dtype):
        verdict.problems.append(
            f"low precision: in {precision} it predicts in {str(outputs.dtype).removeprefix('torch.')}; expected is "
            f"{str(expected.dtype).removeprefix('torch.')}"
        )
    figure = difference(outputs, expected) / float(expected.double().abs().max())
    limit = max(OUTPUT_LIMITS[precision], sum(run.strategy.lossy.values()))
    what = f"largest difference of what it predicts in {precision}, relative to the largest output"
    verdict.add(Part("own precision", "outputs", what, figure, limit))
