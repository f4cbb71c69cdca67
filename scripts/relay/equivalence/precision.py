"""What the run's own precision shows between steps: types, what it predicts, and whether a checkpoint holds it all.

Dropout is off and BatchNorm frozen, as in all trials in this precision. Options are those of the run, lossy ones too.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from relay.equivalence.course import Course
from relay.equivalence.dtypes import fewer_bits, lowered
from relay.equivalence.figures import difference, largest
from relay.equivalence.plain import Plain
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import EXACT, LOSS_LIMITS, Trial
from relay.equivalence.untouched import untouched
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
            held, kept = _state(strategy), _optimizer_state(strategy)
            writing, drawn = first.save(folder / precision)
            writing.result()
    ranks.barrier()
    types = lowered(strategy)
    second = Course(run, data, ranks, task, lossy=lossy)
    resumed = second.load(folder / precision, drawn, strategy.measured)
    found, lost = _state(resumed), _lost(kept, _optimizer_state(resumed))
    for _ in second.steps(BEFORE, BEFORE + AFTER):
        pass
    types += lowered(resumed)
    told = ranks.collect((first.seen, second.seen, strategy.replica, outputs, types, held[1] == found[1], lost))
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
    curves = [(rank[0].losses, rank[1].losses) for rank in reporting]
    _resumed(verdict, run, held[0], found[0], [rank[6] for rank in told], curves)
    _predicted(verdict, run, data, task, torch.cat([rank[3] for rank in reporting]))


def _state(strategy: Strategy) -> tuple[dict[str, torch.Tensor], Any]:
    """The model, complete on rank 0 alone, and the scaler's state. Collective."""
    whole = {name: tensor.clone() for name, tensor in strategy.whole_model().items()}
    return whole, strategy.scaler.state_dict() if strategy.scaler else None


def _optimizer_state(strategy: Strategy) -> dict[tuple[int, str], torch.Tensor]:
    """A copy of what this rank holds of the optimizer's state, by the parameter's place and the kind of state."""
    owned = [parameter for group in strategy.optimizer.param_groups for parameter in group["params"]]
    states = [strategy.optimizer.state.get(parameter, {}) for parameter in owned]
    held = {(place, kind): tensor for place, state in enumerate(states) for kind, tensor in state.items()}
    return {key: _local(tensor).detach().cpu().clone() for key, tensor in held.items() if torch.is_tensor(tensor)}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _lost(held: Mapping[tuple[int, str], torch.Tensor], found: Mapping[tuple[int, str], torch.Tensor]) -> float:
    """The largest difference of a state that was saved and loaded, relative to the largest value of its kind.

    Of what another rank holds after loading nothing is said here: the same in float64 shows whether all is there.
    """
    largest_of: dict[str, float] = {}
    for (_, kind), tensor in held.items():
        most = float(tensor.double().abs().max()) if tensor.numel() else 0.0
        largest_of[kind] = max(largest_of.get(kind, 0.0), most)
    shared = [key for key in held if key in found and held[key].numel() and held[key].shape == found[key].shape]
    figures = [difference(found[key], held[key]) / (largest_of[key[1]] or 1.0) for key in shared]
    return float(torch.tensor([0.0, *figures]).max())  # keeps a NaN


def _resumed(
    verdict: Verdict,
    run: Training,
    held: dict[str, torch.Tensor],
    found: dict[str, torch.Tensor],
    lost: list[float],
    curves: list[tuple[list[float], list[float]]],
) -> None:
    """Compare the object that has loaded the checkpoint with the one that has saved it."""
    precision = run.computation.precision
    if held.keys() != found.keys():
        verdict.problems.append(f"between steps: a checkpoint's model has other names, in {precision}")
        return
    parameters = largest([(found[name], tensor) for name, tensor in held.items()])
    figure = float(torch.tensor([parameters, *lost]).max())  # keeps a NaN
    what = f"largest difference of parameters or optimizer state after a checkpoint was loaded, in {precision}"
    verdict.add(Part("own precision", "state", what, figure, EXACT))
    unbroken = torch.tensor([mine[BEFORE:] for mine, _ in curves], dtype=torch.float64).mean(0)
    resumed = torch.tensor([yours for _, yours in curves], dtype=torch.float64).mean(0)
    what = f"largest loss difference between going on and loading a checkpoint, in {precision}"
    limit = LOSS_LIMITS.get(precision, 1e-5)
    verdict.add(Part("own precision", "resumed", what, difference(resumed, unbroken), limit))


def _predicted(verdict: Verdict, run: Training, data: TrialData, task: TrialTask, outputs: torch.Tensor) -> None:
    """Compare a prediction with the plain training's, in the same precision."""
    precision = run.computation.precision
    with untouched(precision):
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
