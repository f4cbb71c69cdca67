"""Why a setting cannot run where it is asked for: known at planning time, from data alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from relay.planning.config import Config
from relay.planning.settings import BACKENDS, Here
from relay.spec.catalogue import DatasetSpec, TaskSpec
from relay.spec.requirements import Requirements
from relay.spec.schedules import SCHEDULES

DEVICE_NAMES = {"cpu": "CPUs", "cuda": "a GPU"}


def problems(
    row: Mapping[str, Any],
    setting: Mapping[str, Any],
    *,
    config: Config,
    needs: Requirements,
    task: TaskSpec,
    dataset: DatasetSpec,
    here: Here,
) -> list[str]:
    """Why the setting cannot run, each reason with its remedy; empty where it can."""
    if setting["device"] not in needs.devices:
        twin = f"; {needs.twin} is its twin" if needs.twin else ""
        wanted = " or ".join(DEVICE_NAMES.get(d, d) for d in needs.devices)
        return [f"{setting['strategy']} needs {wanted}, device is {setting['device']}{twin}"]
    return [
        *_device_problems(setting, needs, here),
        *_process_problems(row, setting, needs, here),
        *_computing_problems(setting, needs, dataset),
        *_loss_problems(setting, needs, task),
        *_group_problems(setting, needs, task),
        *_batch_problems(row, setting, config, needs, dataset),
    ]


def _device_problems(setting: Mapping[str, Any], needs: Requirements, here: Here) -> Iterator[str]:
    nodes, per_node, strategy = setting["nodes"], setting["devices_per_node"], setting["strategy"]
    if nodes > 1 and needs.processes == "one":
        yield f"{strategy} is one process, which cannot span {nodes} nodes"
    elif nodes > 1 and here.site is None:
        yield f"{nodes} nodes: needs a cluster profile; on one machine give devices_per_node"
    if nodes * per_node < needs.least_devices:
        yield f"{strategy} needs at least {needs.least_devices} devices, has {nodes * per_node}"
    if needs.processes == "one" and not needs.divides and per_node > 1:
        remedy = "; give cpus_per_task instead" if setting["device"] == "cpu" else ""
        yield f"{strategy} uses one device, devices_per_node is {per_node}{remedy}"
    if setting["device"] == "cuda" and here.gpus is not None and per_node > here.gpus:
        yield f"devices_per_node is {per_node}, this machine has {here.gpus} GPU{'s' * (here.gpus > 1)}"
    if setting["backend"] == "none":
        offered = " or ".join(BACKENDS[setting["device"]])
        yield f"{strategy} needs {' or '.join(needs.backends)}, device {setting['device']} offers {offered}"


def _process_problems(
    row: Mapping[str, Any], setting: Mapping[str, Any], needs: Requirements, here: Here
) -> Iterator[str]:
    threads, cpus, workers = setting["threads"], setting["cpus_per_task"], setting["data_workers"]
    launcher, world_size = setting["launcher"], setting["world_size"]
    if threads > cpus:
        yield f"threads {threads} exceed cpus_per_task {cpus}"
    if workers and setting["loader"] == "resident":
        yield f"data_workers {workers} have nothing to do with loader resident; use loader dataloader"
    if launcher != "none" and world_size == 1:
        yield f"launcher {launcher} is for several processes, this is one; use launcher none"
    if launcher == "none" and world_size > 1:
        yield f"launcher none starts one process, {world_size} are needed; use launcher torchrun"
    if launcher == "srun" and here.site is None:
        yield "launcher srun needs a cluster profile; use launcher torchrun"
    if launcher == "spawn" and setting["nodes"] > 1:
        yield f"launcher spawn starts the processes of one node, these are {setting['nodes']}; use launcher torchrun"
    shared = row["processes_per_device"]
    if shared == 1 and needs.processes == "several per device":
        yield f"{setting['strategy']} is for several processes on a device; give processes_per_device, such as 2"
    if shared > 1 and needs.processes != "several per device":
        has = needs.processes.replace("one", "one process")
        yield f"{setting['strategy']} has {has}, processes_per_device is {shared}"


def _computing_problems(setting: Mapping[str, Any], needs: Requirements, dataset: DatasetSpec) -> Iterator[str]:
    precision, options = setting["precision"], setting["options"]
    if setting["device"] == "cpu":
        if precision == "tf32":
            yield "precision tf32 is a mode of GPUs, device is cpu; use bf16"
        for name, values in needs.gpu_only.items():
            if options[name] in values:
                yield f"{name} {options[name]} needs GPUs, device is cpu"
    if precision not in ("bf16", "fp16"):
        for name, values in needs.low_precision_only.items():
            if options[name] in values:
                yield f"{name} is for precision bf16 or fp16, precision is {precision}"
    for name, precisions in needs.not_in.items():
        if precision in precisions.get(options[name], ()):
            yield f"{name} {options[name]} cannot be in precision {precision}"
    for name, (other, value) in needs.part_of.items():
        if options[name] != needs.options[name] and options[other] != value:
            yield f"{name} {options[name]} means nothing beside {other} {options[other]}; use {other} {value}"
    if setting["compile"] and not needs.compiles:
        yield f"{setting['strategy']} cannot be compiled"
    if setting["channels_last"] and dataset.kind != "images":
        yield f"channels_last is for images, {dataset.name} is {dataset.kind}"


def _loss_problems(setting: Mapping[str, Any], needs: Requirements, task: TaskSpec) -> Iterator[str]:
    if task.loss != "cross_entropy":
        for name, values in needs.cross_entropy_only.items():
            if setting["options"][name] in values:
                yield f"{name} is for cross entropy, the loss of {task.name} is {task.loss.replace('_', ' ')}"


def _group_problems(setting: Mapping[str, Any], needs: Requirements, task: TaskSpec) -> Iterator[str]:
    """Why the processes cannot share out what the strategy splits."""
    world_size, options, strategy = setting["world_size"], setting["options"], setting["strategy"]
    group = needs.group_size(world_size, options)
    if world_size % group:
        yield f"{needs.group} {group} does not divide the {world_size} processes"
    for name in needs.divisors:
        if options[name] > 1 and (world_size % options[name] or options[name] >= world_size):
            yield f"{name} {options[name]} does not divide the {world_size} processes into groups of two or more"
    if "samples" in needs.divides and needs.group and group == world_size > 1:
        yield f"{needs.group} {group} leaves one replica of {world_size} processes; nothing divides the samples"
    stages = group * needs.stages_per_process(options)
    if "layers" in needs.needs and stages > task.layers:
        each = f" ({stages // group} for each process)" if stages > group else ""
        yield f"{strategy} has {stages} stages{each}, {task.name} has {task.layers} layers with parameters"
    if needs.pipelined:
        computed = (setting["compile"], setting["channels_last"])
        problems = SCHEDULES[options["schedule"]].problems(group, options["micro_batches"], *computed)
        yield from (f"schedule {options['schedule']} {problem}" for problem in problems)
    heads = task.network_options.get("heads", group)
    if "heads" in needs.needs and heads % group:
        yield f"{heads} attention heads of {task.name} are not divisible by {group} processes"
    if "matrices" in needs.needs and not task.matrices:
        yield f"{strategy} divides matrices, {task.name} has next to none"
    if "experts" in needs.needs and (not task.experts or task.experts % world_size):
        yield f"{strategy} divides experts over {world_size} processes, {task.name} has {task.experts or 'none'}"


def _batch_problems(
    row: Mapping[str, Any],
    setting: Mapping[str, Any],
    config: Config,
    needs: Requirements,
    dataset: DatasetSpec,
) -> Iterator[str]:
    batch = setting["global_batch_size"]
    # One process with several devices gives each a part; else each replica has its own.
    devices, world_size = setting["nodes"] * setting["devices_per_node"], setting["world_size"]
    replicas = max(1, world_size // needs.group_size(world_size, setting["options"]))
    parts = devices if needs.processes == "one" else replicas
    if row["global_batch_size"] is not None and row["batch_per_device"] is not None:
        yield f"global_batch_size {batch} contradicts batch_per_device {row['batch_per_device']}; give one"
    if "samples" in needs.divides and batch % parts:
        what = "devices" if needs.processes == "one" else "processes" if replicas == world_size else "replicas"
        yield f"global_batch_size {batch} is not divisible by {parts} {what}"
    elif "samples" in needs.divides:
        batch //= parts
    for name in needs.whole_batches:
        if batch % setting["options"].get(name, 1):
            yield f"a replica's {batch} samples are not divisible by {name} {setting['options'][name]}"
    batch = setting["global_batch_size"]
    if batch > dataset.train_count:
        yield f"global_batch_size {batch} exceeds {dataset.name}'s {dataset.train_count} training samples"
        return
    steps = round(config.epochs * (dataset.train_count // batch))
    if steps < 1:
        yield f"epochs {config.epochs:g} make no whole step of {dataset.train_count // batch} in an epoch"
    elif steps <= config.warmup_steps:
        yield f"warmup_steps {config.warmup_steps} leave nothing to time of {steps} steps"
