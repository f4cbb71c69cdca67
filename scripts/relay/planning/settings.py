"""From the config's axes to settings: every combination, with every default filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from relay.base.errors import UserError
from relay.planning.config import Comparison, Config, OneOrSeveral
from relay.spec import catalogue
from relay.spec.catalogue import DatasetSpec, TaskSpec
from relay.spec.messages import near, show, unknown
from relay.spec.requirements import Requirements
from relay.spec.site import Site

AXES = tuple(n for n, f in Comparison.model_fields.items() if any(isinstance(m, OneOrSeveral) for m in f.metadata))
# The backends that a device offers, the preferred one first.
BACKENDS = {"cpu": ("gloo",), "cuda": ("nccl", "gloo")}


@dataclass(frozen=True, kw_only=True)
class Here:
    """Where the runs go: this machine, or a site's nodes.

    `gpus` and `cpus` are how many this machine has, None where that is for the jobs to find out.
    """

    device: str
    gpus: int | None
    cpus: int | None
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
            choices = needs[comparison.strategy].allowed(name)
            least = needs[comparison.strategy].least.get(name)
            allowed = f"{_kind(defaults[name], least)}, such as {show(defaults[name])}"
            if choices:
                allowed = ", ".join(map(str, choices))
            wrong += [
                f"{place}{show(value)} is not allowed; {near(value, choices or ())}allowed: {allowed}"
                for value in values
                if not (value in choices if choices else _fits(value, defaults[name], least))
            ]
    if wrong:
        raise UserError("\n".join(wrong))


def _kind(default: Any, least: float | None) -> str:
    if type(default) is int:
        return f"a whole number of at least {_least(default, least):g}"
    number = "a number" if least is None else f"a number of at least {least:g}"
    kinds = {bool: "true or false", float: number, str: "text"}
    return kinds.get(type(default), "a single value")


def _least(default: int, least: float | None) -> float:
    return min(1, default) if least is None else least


def _fits(value: Any, default: Any, least: float | None) -> bool:
    if default is None:
        return True
    if isinstance(default, float):
        return type(value) in (int, float) and math.isfinite(value) and (least is None or value >= least)
    if type(default) is int:
        return type(value) is int and value >= _least(default, least)
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
        "data_workers": _workers(row, device, cpus_per_task),
        "cpus_per_task": cpus_per_task,
        "threads": row["threads"] or cpus_per_task,
        "interop_threads": row["interop_threads"],
        "precision": row["precision"],
        "compile": row["compile"],
        "channels_last": row["channels_last"],
        "activation_checkpointing": row["activation_checkpointing"],
        "options": {**needs.options, **options},
    }


def _workers(row: Mapping[str, Any], device: str, cpus_per_task: int) -> int:
    """Worker processes of a dataloader where the config gives none: on CPUs they would compete with the training."""
    if row["data_workers"] is not None:
        return int(row["data_workers"])
    return cpus_per_task if row["loader"] == "dataloader" and device == "cuda" else 0


def _share_of_cpus(device: str, devices: int, processes: int, site: Site | None) -> int:
    """CPUs of a process where the config gives none: the site's share of its GPUs; 1 without any."""
    if device == "cpu" or site is None or site.cpus_per_gpu is None:
        return 1
    return max(1, devices * site.cpus_per_gpu // processes)
