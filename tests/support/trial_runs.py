"""Gates made by hand, without a planner: any task, small, on the CPU; their references are trained in this process."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gate_parts import judge_in_a_row
from gate_runs import FOLDER
from own_tasks import STEPS
from preloaded import spawned
from relay.equivalence import reference
from relay.equivalence.plain import deterministic
from relay.equivalence.trial_task import TrialData
from relay.spec.recipe import Batch, Length
from relay.spec.run import Gate, OwnBatch
from relay.spec.setting import Computation, Shape, StrategySpec
from relay.spec.strategy_files import find, read
from relay.spec.tasks import DatasetSpec, TaskSpec
from relay.task.bound import BoundTask
from relay.task.prepared import prepare_data

CPU = torch.device("cpu")


def gate_of(
    task: TaskSpec,
    folder: Path,
    strategy: str = "cpu",
    processes: int = 1,
    *,
    batch: int = 16,
    own_batches: Sequence[int] = (),
    options: dict[str, Any] | None = None,
) -> Gate:
    """A gate of a few steps; `folder` gets the task's data."""
    prepare_data(task, DatasetSpec(name=task.name, version="1", train_count=1, test_count=1), folder)
    train, test = map(len, BoundTask(task, 1, "fp32", 1, 1, folder=folder).datasets)
    file = find([FOLDER])[strategy]
    needs = read(file)
    return Gate(
        id=f"{task.name}-{strategy}-{processes}", seed=1, task=task,
        dataset=DatasetSpec(name=task.name, version="1", train_count=train, test_count=test),
        strategy=StrategySpec(name=strategy, options=options or {}, file=str(file), divides=needs.divides),
        shape=Shape(devices_per_node=processes), computation=Computation(),
        batch=Batch(global_batch_size=batch),
        length=Length(
            epochs=STEPS / (train // batch), steps_per_epoch=train // batch, total_steps=STEPS,
            evaluate_every_steps=STEPS,
        ),
        own_batches=tuple(OwnBatch(global_batch_size=each, learning_rate=task.learning_rate) for each in own_batches),
    )  # fmt: skip


def judged(task: TaskSpec, place: Path, strategy: str, processes: int = 2, **how: Any) -> dict[str, Any]:
    """The whole gate's verdict at a batch of 8, in processes of their own; its data and reference lie in `place`."""
    folder, file = place / "data", place / "reference.pt"
    run = gate_of(task, folder, strategy, processes, batch=8, **how)
    deterministic()
    reference.write(file, reference.of_all_trials(TrialData(run, folder, CPU)))
    spawned(judge_in_a_row, processes, [("verdict", run, folder, file)], place)
    return json.loads((place / "verdict.json").read_text())
