"""One look at a task: what it declares, its data, its model, its loss and its optimiser."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from relay.base.errors import UserError
from relay.card import channels_last, data, declared, divided, learning, model, optimizer
from relay.card.draft import Draft
from relay.datasets.manifest import MANIFEST
from relay.process.devices import gpu
from relay.spec.strategy_files import checked_options
from relay.spec.tasks import Card, DatasetSpec, Looked, TaskSpec
from relay.task import batches
from relay.task.bound import BoundTask
from relay.task.load import as_in_jobs, in_one_line, task_class
from relay.task.places import calling, mistake, needs_gpu
from relay.task.prepared import prepare_data, version_of
from relay.task.user import Task, options_of

SEED = 0


class Unprepared(UserError):
    """The data of the task are not there, and were not to be prepared."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where data are. `datasets` is the folder of all prepared data; `prepare`: prepare what is not there.

    Data that a task generates are prepared in any case. `root` and `mirror` are those of `prepared.prepare_data`.
    """

    datasets: Path
    prepare: bool = False
    root: Path | None = None
    mirror: str | None = None


def look(name: str, file: str, options: Mapping[str, Any], where: Data) -> Looked:
    """The task with its card. `file` is the user's, '' for a built-in task; `options` are some of the task's.

    The task is what jobs have of it. It is computed on the CPU; on a GPU where the model needs one and one is there.
    Raises UserError, with file and line, for every mistake that can be seen; Unprepared where data are missing.
    """
    with as_in_jobs(file) as copy:
        try:
            looked = _look(name, copy, options, where, torch.device("cpu"))
        except UserError as error:
            if not needs_gpu(error) or not torch.cuda.is_available():
                raise
            looked = _look(name, copy, options, where, gpu(0))
        except SystemExit as error:  # such as that of a script's argparse
            raise UserError(in_one_line(error, Path(copy))) from None
    return replace(looked, task=replace(looked.task, file=file))


def _look(name: str, file: str, options: Mapping[str, Any], where: Data, device: torch.device) -> Looked:
    own = _own(name, file, options)
    declared.check(own)
    try:
        return _seen(own, name, file, where, device)
    except Unprepared:
        raise
    except UserError as error:
        # Methods that are left out may be the reason: a misspelt `prepare` leaves no samples.
        raise UserError("\n".join([str(error), *declared.uncalled(type(own))])) from error.__cause__


def _seen(own: Task, name: str, file: str, where: Data, device: torch.device) -> Looked:
    spec, draft = _specification(own, name, file), Draft(type(own), device)
    draft.card["no_options"] = declared.no_options(own)
    dataset = DatasetSpec(name=own.data or name, version=version_of(own), train_count=0, test_count=0)
    with _folder(own, spec, dataset, where) as folder:
        bound = BoundTask(spec, SEED, "fp32", 1, 1, folder=folder)
        stored, (train_count, test_count) = data.see(bound, draft)
        spec = replace(spec, units_per_sample=_units_per_sample(own, draft))
        batch = batches.moved(stored, device)
        whole, computable = model.see(bound, batch, draft)
        divided.see(bound, whole, batch, draft)
        optimizer.see(bound, whole, draft)
        if computable is not None:
            learning.see(computable, draft)
            channels_last.see(computable, draft)
            divided.see_outputs(computable, draft)
            optimizer.step(computable)
    return Looked(
        task=replace(spec, card=Card(**draft.card), optimizer=draft.optimizer, metrics=draft.metrics),
        dataset=replace(dataset, train_count=train_count, test_count=test_count),
        warnings=(*declared.warnings(own), *draft.warnings),
    )


def _own(name: str, file: str, options: Mapping[str, Any]) -> Task:
    kind = task_class(TaskSpec(name=name, file=file, global_batch_size=1, learning_rate=1.0))
    with calling(kind, "__init__"):
        own = kind()
    for option, value in checked_options(options, options_of(own), name).items():
        setattr(own, option, value)
    return own


def _specification(own: Task, name: str, file: str) -> TaskSpec:
    return TaskSpec(
        name=name,
        file=file,
        options=options_of(own),
        unit=own.unit,
        units_per_sample=own.units_per_sample,
        global_batch_size=own.global_batch_size,
        learning_rate=float(own.learning_rate),
        epochs=float(own.epochs),
        schedule={"kind": "scheduler"} if type(own).scheduler is not Task.scheduler else dict(own.schedule),
        small=dict(own.small),
    )


def _units_per_sample(own: Task, draft: Draft) -> int:
    """How many units a sample is. If it is of tokens, and the task names no number, a row of whole numbers tells it."""
    named = any("units_per_sample" in vars(kind) for kind in type(own).__mro__ if kind is not Task)
    if named or own.units_per_sample != 1 or own.unit != "tokens":
        return own.units_per_sample
    inputs = draft.card["batch"][0]
    if draft.card["equal_shapes"] and inputs.dtype.startswith("int") and len(inputs.shape) == 1:
        return int(inputs.shape[0])
    warned = "speed counts tokens, and a sample counts as 1 token; set units_per_sample to the number of its tokens"
    draft.warn("unit", warned)
    return 1


@contextmanager
def _folder(own: Task, spec: TaskSpec, dataset: DatasetSpec, where: Data) -> Iterator[Path]:
    """The folder of the task's data. For a task that prepares none it is an empty one. Raises Unprepared."""
    there = where.datasets / dataset.directory_name
    if type(own).prepare is Task.prepare:
        with tempfile.TemporaryDirectory() as empty:
            yield Path(empty)
        return
    if where.prepare or own.generated:
        prepare_data(spec, dataset, there, root=where.root, mirror=where.mirror)
        _check_made(own, there)
    elif not (there / MANIFEST).is_file():
        raise Unprepared(f"task {spec.name}: its data are not prepared: {there} is missing")
    yield there


def _check_made(own: Task, folder: Path) -> None:
    if not any(path.name != MANIFEST for path in folder.iterdir()):
        raise mistake(
            type(own), "prepare", "prepare() left nothing in the folder that it was given; allowed: files below it"
        )
