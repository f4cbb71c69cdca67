"""From the config's axes to settings: every combination, resolved, or with the reason why it cannot run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from relay import catalogue
from relay.catalogue import DatasetSpec, TaskSpec
from relay.config import Comparison, Config, OneOrSeveral
from relay.config_errors import show, unknown
from relay.errors import UserError
from relay.requirements import Requirements
from relay.site import Site

AXES = tuple(n for n, f in Comparison.model_fields.items() if any(isinstance(m, OneOrSeveral) for m in f.metadata))
# The backends that a device offers, the preferred one first.
BACKENDS = {"cpu": ("gloo",), "cuda": ("nccl", "gloo")}
DEVICE_NAMES = {"cpu": "CPUs", "cuda": "a GPU"}


@dataclass(frozen=True, kw_only=True)
class Here:
    """Where the runs go: this machine, or a site's nodes.

    `gpus` is how many this machine has, None where that is for the jobs to find out.
    """

    device: str
    gpus: int | None
    site: Site | None = None


def count_gpus() -> int:
    """NVIDIA GPUs of this machine, without torch or the driver's library."""
    return sum(p.name.removeprefix("nvidia").isdigit() for p in Path("/dev").glob("nvidia*"))


def expand(comparisons: list[Comparison]) -> pd.DataFrame:
    """Every combination of each comparison's axes: a column per axis, `comparison` (its index), `options`."""
    return pd.concat([_cross(index, comparison) for index, comparison in enumerate(comparisons)], ignore_index=True)


def _cross(index: int, comparison: Comparison) -> pd.DataFrame:
    axes = {name: getattr(comparison, name) for name in AXES}
    own = {f"options.{name}": values for name, values in comparison.options.items()}
    # As objects throughout: pandas would turn a missing value among whole numbers into NaN, and 64 into 64.0.
    table = pd.DataFrame({"comparison": [index], "strategy": [comparison.strategy]}, dtype=object)
    for name, values in (axes | own).items():
        values = [
            v for i, v in enumerate(values) if not any(v is w or (type(v), v) == (type(w), w) for w in values[:i])
        ]
        table = table.merge(pd.DataFrame({name: values}, dtype=object), how="cross")
    rows = table[list(own)].to_dict("records")
    options = [{str(k).removeprefix("options."): v for k, v in row.items()} for row in rows]
    return table.drop(columns=list(own)).assign(options=pd.Series(options, dtype=object))


def check_strategies(config: Config, known: Mapping[str, Path]) -> None:
    """Raises UserError with a line for each comparison whose strategy has no file."""
    wrong = [
        f"config: comparisons[{i}].strategy: " + unknown(f"{show(c.strategy)} is unknown", c.strategy, known)
        for i, c in enumerate(config.comparisons)
        if c.strategy not in known
    ]
    if wrong:
        raise UserError("\n".join(wrong))


def check_options(config: Config, needs: Mapping[str, Requirements]) -> None:
    """Raises UserError with a line for each option that its strategy lacks, or has of another type."""
    wrong = []
    for i, comparison in enumerate(config.comparisons):
        defaults = needs[comparison.strategy].options
        for name, values in comparison.options.items():
            place = f"config: comparisons[{i}].options.{name}: "
            if name not in defaults:
                text = f"{show(values[0])} is for no option of {comparison.strategy}"
                wrong.append(place + unknown(text, name, defaults))
                continue
            allowed = f"{_kind(defaults[name])}, such as {show(defaults[name])}"
            wrong += [
                f"{place}{show(value)} is not allowed; allowed: {allowed}"
                for value in values
                if not _fits(value, defaults[name])
            ]
    if wrong:
        raise UserError("\n".join(wrong))


def _kind(default: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return kinds.get(type(default), "a single value")


def _fits(value: Any, default: Any) -> bool:
    if default is None:
        return True
    if isinstance(default, float):
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is type(default)


def task_and_dataset(config: Config) -> tuple[TaskSpec, DatasetSpec]:
    """The task with the config's learning rate, if any, and its dataset, if synthetic as configured."""
    task = catalogue.task(config.task)
    if config.learning_rate is not None:
        task = replace(task, learning_rate=config.learning_rate)
    changes = config.synthetic.model_dump() if task.dataset == "synthetic" else {}
    if changes:
        changes["shape"] = tuple(changes["shape"])
    dataset = catalogue.dataset(task.dataset, **changes)
    if dataset.kind == "images":
        catalogue.magnification(dataset.shape, task)  # a misfit is known now, not when jobs have waited for it
    return task, dataset


def scaled(task: TaskSpec, scaling: str, global_batch_size: int) -> TaskSpec:
    """The task with its learning rate scaled from its own global batch size to this one."""
    growth = global_batch_size / task.global_batch_size
    factor = {"none": 1.0, "linear": growth, "square_root": math.sqrt(growth)}[scaling]
    return replace(task, learning_rate=task.learning_rate * factor)


def resolve(
    row: Mapping[str, Any], *, config: Config, needs: Requirements, task: TaskSpec, here: Here
) -> dict[str, Any]:
    """The row's columns with every default filled in, under the names that `Run` and the comparison use."""
    device = here.device
    if device not in needs.devices and "cpu" in needs.devices:
        device = "cpu"  # a strategy for CPUs runs beside those for GPUs
    processes = row["devices_per_node"] * row["processes_per_device"] if needs.processes != "one" else 1
    world_size = row["nodes"] * processes
    batch = row["global_batch_size"]
    if batch is None and row["batch_per_device"] is not None:
        batch = row["batch_per_device"] * row["nodes"] * row["devices_per_node"]
    # NCCL refuses processes that share a GPU.
    alone = row["processes_per_device"] == 1
    offered = [b for b in BACKENDS[device] if b in needs.backends and (alone or b != "nccl")]
    cpus_per_task = row["cpus_per_task"] or _share_of_cpus(device, row["devices_per_node"], processes, here.site)
    options = {
        name: float(value) if isinstance(needs.options[name], float) else value
        for name, value in row["options"].items()
    }
    return {
        "task": task.name,
        "strategy": row["strategy"],
        "stack": needs.stack,
        "device": device,
        "backend": offered[0] if offered else "none",
        "site": here.site.name if here.site else "local",
        "launcher": row["launcher"] or ("torchrun" if world_size > 1 else "none"),
        "nodes": row["nodes"],
        "devices_per_node": row["devices_per_node"],
        "processes_per_node": processes,
        "world_size": world_size,
        "global_batch_size": batch or config.global_batch_size or task.global_batch_size,
        "learning_rate_scaling": row["learning_rate_scaling"] or config.learning_rate_scaling,
        "loader": row["loader"],
        "data_workers": row["data_workers"],
        "cpus_per_task": cpus_per_task,
        "threads": row["threads"] or cpus_per_task,
        "interop_threads": row["interop_threads"],
        "precision": row["precision"],
        "options": {**needs.options, **options},
    }


def _share_of_cpus(device: str, devices: int, processes: int, site: Site | None) -> int:
    """CPUs of a process where the config gives none: the site's share of its GPUs; 1 without any."""
    if device == "cpu" or site is None or site.cpus_per_gpu is None:
        return 1
    return max(1, devices * site.cpus_per_gpu // processes)


def problems(
    row: Mapping[str, Any],
    setting: Mapping[str, Any],
    *,
    config: Config,
    needs: Requirements,
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
    if shared > 1 and needs.processes != "several per device":
        has = needs.processes.replace("one", "one process")
        yield f"{setting['strategy']} has {has}, processes_per_device is {shared}"


def _batch_problems(
    row: Mapping[str, Any],
    setting: Mapping[str, Any],
    config: Config,
    needs: Requirements,
    dataset: DatasetSpec,
) -> Iterator[str]:
    batch = setting["global_batch_size"]
    # One process with several devices gives each a part; else each process has its own.
    parts = setting["nodes"] * setting["devices_per_node"] if needs.processes == "one" else setting["world_size"]
    if row["global_batch_size"] is not None and row["batch_per_device"] is not None:
        yield f"global_batch_size {batch} contradicts batch_per_device {row['batch_per_device']}; give one"
    if "samples" in needs.divides and batch % parts:
        what = "devices" if needs.processes == "one" else "processes"
        yield f"global_batch_size {batch} is not divisible by {parts} {what}"
    if batch > dataset.train_count:
        yield f"global_batch_size {batch} exceeds {dataset.name}'s {dataset.train_count} training samples"
        return
    steps = round(config.epochs * (dataset.train_count // batch))
    if steps < 1:
        yield f"epochs {config.epochs:g} make no whole step of {dataset.train_count // batch} in an epoch"
    elif steps <= config.warmup_steps:
        yield f"warmup_steps {config.warmup_steps} leave nothing to time of {steps} steps"
