"""From a combination of the config's axes to its setting, with all defaults filled in."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from relay.config.comparisons import Combination
from relay.config.config import Config
from relay.config.strategies import StrategyFile
from relay.planning.inputs import Here
from relay.spec import strategy_files, versions
from relay.spec.recipe import Batch, Length, Optimization, SpotChecks
from relay.spec.requirements import SCHEDULES, Requirements
from relay.spec.run import Setting
from relay.spec.setting import Backend, Computation, Device, Feeding, Launcher, Loader, Place, Shape, StrategySpec
from relay.spec.site import Site
from relay.spec.tasks import Card, DatasetSpec, Looked, TaskSpec

# In which a GPU's tensor cores compute convolutions; they want the channels of a pixel side by side.
IN_TENSOR_CORES = frozenset({"bf16", "fp16", "tf32", "tf32_convolution"})
# The largest training set that is kept on the device where nobody has said how to read it.
MOST_RESIDENT_BYTES = 4 * 2**30
OPTIMIZER_OPTIONS = ("momentum", "weight_decay")  # that are axes
# The backends that every torch has for a device, the preferred one first.
BACKENDS: Mapping[Device, tuple[Backend, ...]] = {"cpu": ("gloo",), "cuda": ("nccl", "gloo")}


def resolve(
    combination: Combination,
    *,
    config: Config,
    strategy: StrategyFile,
    stack: str,
    looked: Looked,
    here: Here,
) -> Setting:
    """The setting of a combination, with every default filled in. `stack` is the software that its jobs use.

    `looked` is the task with the combination's options.
    """
    task, dataset = looked.task, looked.dataset
    needs = strategy.requirements
    shape = shape_of(combination, needs, here)
    axes = combination.axes
    batch = axes["global_batch_size"]
    if batch is None and axes["batch_per_device"] is not None:
        # No more than the set has: a page's batch size is often the DataLoader's, which then takes what there is.
        batch = min(axes["batch_per_device"], max(1, dataset.train_count // shape.devices)) * shape.devices
    batch = batch or config.global_batch_size or task.global_batch_size
    scaling = axes["learning_rate_scaling"] or config.learning_rate_scaling
    options = strategy_files.typed(combination.options, needs.options)
    trained = trained_as(scaled(task, scaling, batch), axes)
    loader = axes["loader"] or default_loader(task.card, dataset)
    return Setting(
        task=trained,
        dataset=dataset,
        strategy=StrategySpec(
            name=combination.strategy,
            file=str(strategy.file),
            stack=stack,
            options=options,
            divides=tuple(needs.divides),
            node_needs=(
                *needs.node_needs.get(shape.device, ()),
                *versions.needed(needs.least_torch, needs.least_python, needs.packages),
            ),
            lossy=needs.lossy_options(options),
        ),
        shape=shape,
        place=Place(site=here.site.name if here.site else "local"),
        computation=_computation(axes, shape, task.card, needs, options, captured=config.cuda_graph),
        feeding=_group(Feeding, axes, loader=loader, data_workers=_workers(axes["data_workers"], loader, shape)),
        batch=_group(Batch, axes, global_batch_size=batch, learning_rate_scaling=scaling),
        optimization=_group(Optimization, axes, **optimization(trained)),
        length=_length(config, task, dataset.train_count // batch),
        spot_checks=SpotChecks(**config.spot_checks.model_dump()),
    )


Group = TypeVar("Group", Shape, Computation, Feeding, Batch, Optimization)


def _group(kind: type[Group], axes: Mapping[str, Any], **own: Any) -> Group:
    """A group of a setting's fields: what the axes ask for, replaced by what was found for it (`own`), if not None."""
    given = {each.name: axes[each.name] for each in fields(kind) if axes.get(each.name) is not None}
    return kind(**given | {name: value for name, value in own.items() if value is not None})


def shape_of(combination: Combination, needs: Requirements, here: Here) -> Shape:
    """The shape of a combination, for what needs this."""
    axes, device = combination.axes, here.device
    if device not in needs.devices and "cpu" in needs.devices:
        device = "cpu"  # so that one config can compare a strategy for CPUs with strategies for GPUs
    # A strategy with one process uses all devices of its node.
    devices = axes["devices_per_node"] * axes["processes_per_device"] if needs.processes == "one" else 1
    shape = _group(Shape, axes, device=device, devices_per_process=devices)
    cpus = axes["cpus_per_task"] or _share_of_cpus(shape, here.site)
    backend = axes["backend"] or default_backend(shape, needs)
    return replace(
        shape,
        cpus_per_task=cpus,
        threads=axes["threads"] or cpus,
        launcher=axes["launcher"] or default_launcher(shape, backend, here.site),
        backend=backend,
    )


def default_launcher(shape: Shape, backend: Backend | None, site: Site | None) -> Launcher:
    """What starts the processes of a shape where nothing is asked for: on one node, what begins soonest."""
    if shape.world_size == 1:
        return "none"
    if backend == "mpi" and site:  # MPI knows only processes that Slurm has started
        return "srun"
    return "direct" if shape.nodes == 1 else "torchrun"


def default_backend(shape: Shape, needs: Requirements) -> Backend | None:
    """The first backend of the device that the strategy works with; None where there is none."""
    alone = shape.processes_per_device == 1  # NCCL refuses processes that share a GPU
    offered = (b for b in BACKENDS[shape.device] if b in needs.backends and (alone or b != "nccl"))
    return next(offered, None)


def default_loader(card: Card, dataset: DatasetSpec) -> Loader:
    """In memory where all samples have one shape, are the same in each epoch, and are few enough; else one by one."""
    if card.equal_shapes is False or card.random_samples:
        return "dataloader"
    return "resident" if (card.sample_bytes or 0) * dataset.train_count <= MOST_RESIDENT_BYTES else "dataloader"


def _computation(
    axes: Mapping[str, Any],
    shape: Shape,
    card: Card,
    needs: Requirements,
    options: Mapping[str, Any],
    *,
    captured: bool,
) -> Computation:
    """How a combination computes. The order in memory that is faster is the default, where it gives the same.

    `captured`: where a GPU can, it replays a captured step.
    """
    channels_last = axes["channels_last"]
    if channels_last is None:
        faster = shape.device == "cpu" or axes["precision"] in IN_TENSOR_CORES
        parted = needs.pipelined and options["schedule"] in SCHEDULES and SCHEDULES[options["schedule"]].parted
        channels_last = bool(card.channels_last) and faster and not parted
    return _group(Computation, axes, channels_last=channels_last, cuda_graph=captured and shape.device == "cuda")


def _length(config: Config, task: TaskSpec, steps_per_epoch: int) -> Length:
    saving = config.checkpoint_every_epochs
    saved = max(1, round(saving * steps_per_epoch)) if saving else config.checkpoint_every_steps
    epochs = config.epochs or task.epochs
    return Length(
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        total_steps=round(epochs * steps_per_epoch),
        evaluate_every_steps=max(1, round(config.evaluate_every_epochs * steps_per_epoch)),
        warmup_steps=config.warmup_steps,
        checkpoint_minutes=config.checkpoint_minutes,
        checkpoint_every_steps=saved,
        observed_steps=config.observed_steps,
        monitor_seconds=config.monitor_seconds,
    )


def _workers(given: int | None, loader: Loader, shape: Shape) -> int:
    """The number of a dataloader's worker processes. On CPUs the default is 0: workers would compete with training."""
    if given is not None:
        return given
    return shape.cpus_per_task if loader == "dataloader" and shape.device == "cuda" else 0


def _share_of_cpus(shape: Shape, site: Site | None) -> int:
    """The default number of CPUs of a process: those that the site gives with the process's GPUs, else 1."""
    if shape.device == "cpu" or site is None or site.cores_per_gpu is None:
        return 1
    return max(1, shape.devices_per_node * site.cores_per_gpu // shape.processes_per_node)


def scaled(task: TaskSpec, scaling: str, global_batch_size: int) -> TaskSpec:
    """The task with its learning rate scaled from its own global batch size to this one."""
    growth = global_batch_size / task.global_batch_size
    factor = {"none": 1.0, "linear": growth, "square_root": math.sqrt(growth)}[scaling]
    return replace(task, learning_rate=task.learning_rate * factor)


def trained_as(task: TaskSpec, axes: Mapping[str, Any]) -> TaskSpec:
    """The task with the optimizer and the schedule that the axes ask for. An axis of None leaves the task's own.

    If a value equals the task's own, the run is the same.
    """
    own = optimization(task)
    options = {name: axes[name] for name in OPTIMIZER_OPTIONS if axes[name] not in (None, own[name])}
    return replace(task, optimizer_options={**task.optimizer_options, **options}, schedule=_schedule(task, axes))


def _schedule(task: TaskSpec, axes: Mapping[str, Any]) -> dict[str, Any]:
    own = task.schedule
    schedule: dict[str, Any] = {"kind": axes["learning_rate_schedule"] or own["kind"]}
    if schedule["kind"] == "step":
        schedule["every_epochs"] = axes["learning_rate_step_epochs"] or own.get("every_epochs")
        schedule["gamma"] = axes["learning_rate_step_gamma"] or own.get("gamma")
    warmup = axes["learning_rate_warmup_epochs"]
    warmup = own.get("warmup_epochs", 0) if warmup is None else warmup
    return schedule | ({"warmup_epochs": warmup} if warmup else {})


def optimization(task: TaskSpec) -> dict[str, Any]:
    """The optimizer and the schedule of a task, as fields of `Optimization`."""
    options, schedule = {**task.card.optimizer_options, **task.optimizer_options}, task.schedule
    return {
        "momentum": options.get("momentum"),
        "weight_decay": options.get("weight_decay"),
        "learning_rate_schedule": schedule["kind"],
        "learning_rate_step_epochs": schedule.get("every_epochs"),
        "learning_rate_step_gamma": schedule.get("gamma"),
        "learning_rate_warmup_epochs": float(schedule.get("warmup_epochs", 0.0)),
    }
