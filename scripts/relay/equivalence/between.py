"""The training as a run does it: with dropout and BatchNorm, with evaluations, with a checkpoint that it goes on from.

The strategy trains first. Then one process repeats it with the same masks and without ever stopping, and compares.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from relay import strategies
from relay.equivalence import modules, precision
from relay.equivalence.compared import compare, compare_types, compare_work, compared_modules
from relay.equivalence.course import AFTER, BEFORE, BESIDE, AsTrained, Course, EndedEarlyError
from relay.equivalence.dtypes import lowered
from relay.equivalence.repeated import Loaded, Repeated, Told
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import EXACT, Trial
from relay.equivalence.untouched import untouched
from relay.equivalence.verdict import Verdict
from relay.process.ranks import Ranks
from relay.spec.run import Training
from relay.strategies.base import Strategy

TRIAL = Trial(
    name="as trained",
    what="in float64, with dropout and BatchNorm at work",
    precision="fp64",
    steps=BEFORE + AFTER,
    limit=EXACT,
    compares=("losses", "parameters", "outputs"),
)


def judge(verdict: Verdict, run: Training, data: TrialData, folder: Path, ranks: Ranks, *, slowdown: int = 1) -> None:
    """Train as a run does, and compare all of it with a plain training. Collective; rank 0 judges.

    `folder` is for checkpoints; all ranks see it. It is removed at the end. `slowdown` divides the learning rate in the
    run's own precision, where BatchNorm is frozen.
    """
    if ranks.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    ranks.barrier()
    try:
        _judge(verdict, run, data, folder, ranks)
        if run.computation.precision != "fp64":
            precision.judge(verdict, run, data, folder, ranks, slowdown)
    except EndedEarlyError as ended:
        verdict.problems.append(f"as trained: {ended}")
    finally:
        if ranks.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _judge(verdict: Verdict, run: Training, data: TrialData, folder: Path, ranks: Ranks) -> None:
    first = Course(run, data, ranks, AsTrained.of_run(run, TRIAL))
    strategy = first.build()
    built = modules.configurations(strategy.model)
    for step in first.steps(0, BEFORE + BESIDE):
        if step == 0:
            first.predict("after the first step")
        if step == BEFORE - 1:
            first.predict("before the checkpoint")
            writing, drawn = first.save(folder / "middle")  # it is written while the training goes on
    writing.result()
    trained = _cloned(strategy)
    ranks.barrier()
    told_first = lowered(strategy)
    task = AsTrained.of_run(run, TRIAL)
    second = Course(run, data, ranks, task)
    resumed = second.load(folder / "middle", drawn, strategy.measured)
    loaded = _cloned(resumed)
    second.predict("after the checkpoint was loaded")
    for _ in second.steps(BEFORE, BEFORE + AFTER):
        pass
    second.predict("at the end")
    resumed.save(folder / "end").result()
    ranks.barrier()
    alone = _alone(task, run.batch.global_batch_size, folder / "end", ranks)
    held = resumed.footprint()["optimizer"]
    types = told_first + lowered(resumed)
    told = ranks.collect(Told(strategy.replica, first.seen, second.seen, built, held, types))
    if ranks.rank == 0:
        repeated = Repeated(run, data, task, told, type(strategy).requirements)
        with untouched(run.computation.precision):
            repeated.train()
        compare(verdict, repeated, trained, loaded, alone)
        verdict.problems += compared_modules(repeated)
        compare_types(verdict, repeated)
        compare_work(verdict, repeated)


def _cloned(strategy: Strategy) -> dict[str, torch.Tensor]:
    """The whole model; complete on rank 0 alone. Collective."""
    return {name: tensor.clone() for name, tensor in strategy.whole_model().items()}


def _alone(task: AsTrained, global_batch_size: int, folder: Path, ranks: Ranks) -> Loaded | str | None:
    """What one plain process loads from a checkpoint, or why it cannot; None on all ranks but the first. Collective."""
    group = dist.new_group([0], backend="gloo")
    if ranks.rank != 0:
        return None
    assert group is not None
    single = replace(ranks, rank=0, world_size=1, local_rank=0, control=group, saving=group)
    strategy = strategies.load("cpu")(task, single, global_batch_size, {})
    try:
        strategy.load(folder)
    except (Exception, CheckpointException) as error:  # torch's is none of Python's exceptions
        reason = getattr(error, "failures", {}).get(0, (error,))[0]
        return f"{type(reason).__name__}: {reason}".splitlines()[0]
    finally:
        dist.destroy_process_group(group)
    return Loaded.of(strategy.model, strategy.optimizer)
