"""Short names for settings, made from the labels of the fields in which they differ."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relay.base.grouped import gathered
from relay.spec.declare import SettingField
from relay.spec.run import Setting, setting_fields, value_of
from relay.spec.strategy_files import chosen

Row = Mapping[str, Any]
SHOWN = 3  # names in a line

# Values of these groups are named wherever they differ within a task. Values of the other groups are named only where
# two settings of a strategy would otherwise have the same name.
ALWAYS_NAMED = ("computation", "batch", "optimization", "length")


def flat(setting: Setting) -> dict[str, Any]:
    """A setting as a row: every declared field by name, the task's options, and the names of task, strategy, stack."""
    row = {each.name: value_of(setting, each) for each in setting_fields()}
    if setting.strategy.script:  # it reads its data as it likes, and nobody knows its epochs and steps
        row |= dict.fromkeys(("loader", "epochs", "steps_per_epoch", "total_steps", "evaluate_every_steps"))
        row |= {"global_batch_size": None} if setting.task.unit == "runs" else {}
    row |= {"task_options": options_text(setting.task.options)}
    row |= {"task": setting.task.name, "strategy": setting.strategy.name, "stack": setting.strategy.stack}
    return row | {"world_size": setting.shape.world_size}


def described(setting: Setting) -> dict[str, Any]:
    """A setting as a row for `setting_labels`."""
    options = chosen(Path(setting.strategy.file), setting.strategy.options)
    return flat(setting) | {"chosen_options": options_text(options)}


def comparable(row: Row) -> tuple[str, ...]:
    """What two settings must have in common for their speeds to be compared: the task, and all of its options.

    Another value of an option is another model, or other data, and a step of it is other work. So is another
    `training`, where the row has one: that of a batch, say, which no evaluation compares with others.
    """
    return str(row["task"]), str(row.get("task_options") or ""), str(row.get("training") or "")


def training_of(setting: Setting) -> tuple[Any, ...]:
    """What settings of a task share that take the same steps."""
    rate = setting.task.learning_rate
    return setting.batch.global_batch_size, rate, repr(setting.optimization), setting.computation.precision


def trainings(rows: Sequence[Row]) -> list[str]:
    """By what the trainings of these rows of a task differ: batch, optimization, precision; such as 'batch 64'."""
    named = [each for each in setting_fields() if each.about.label]
    bearing = [each for each in named if each.group in ("batch", "optimization") or each.name == "precision"]
    various = _various(rows, bearing)
    return [", ".join(_differing(row, various)) for row in rows]


def trained(rows: Sequence[Row]) -> list[str]:
    """What each row's setting trains, such as 'discs (width=8)': its task, with those options that not all rows share.

    It is the same for two rows of these if, and only if, they are `comparable`.
    """
    shared = _shared_options(rows)
    names = [(row["task"], ", ".join(filter(None, [*_task_options(row, shared), row.get("training")]))) for row in rows]
    return [f"{task} ({options})" if options else str(task) for task, options in names]


def setting_labels(rows: Sequence[Row]) -> list[str]:
    """A short name for each row's setting, such as '2 procs, 1 thread, resident', with what tells it from the others.

    A row has the declared fields by name (None where unknown), `task`, `strategy`, `world_size`, `task_options` as a
    text, and `chosen_options`: the options that differ from the strategy's defaults, as a text. Its id in `setting` is
    added to the name only where nothing else tells two settings apart.
    """
    named = [each for each in setting_fields() if each.about.label]
    common = [each for each in named if each.group in ALWAYS_NAMED]
    shared, various = _shared_options(rows), _various(rows, common)
    labels = [", ".join([*_base(row), *_task_options(row, shared), *_differing(row, various)]) for row in rows]
    for more in ([each for each in named if each.group not in ALWAYS_NAMED], None):
        names = [(row["task"], row["strategy"], label) for row, label in zip(rows, labels, strict=True)]
        alike = gathered(zip(names, rows, strict=True))
        apart = {name: _distinction(group, more) for name, group in alike.items()}
        labels = [", ".join(filter(None, [name[2], *apart[name](row)])) for row, name in zip(rows, names, strict=True)]
    return labels


def _distinction(alike: Sequence[Row], more: Sequence[SettingField] | None) -> Callable[[Row], list[str]]:
    """What is added to the name of one of these rows: words of these fields, or without any the setting's id."""
    if more is not None:
        various = _various(alike, more)
        return lambda row: _differing(row, various)
    several = len({row["setting"] for row in alike if row.get("setting")}) > 1
    return lambda row: [str(row["setting"])] if several and row.get("setting") else []


def _various(rows: Sequence[Row], among: Sequence[SettingField]) -> Mapping[Any, Sequence[SettingField]]:
    """By task: those of the fields whose values differ between its rows."""
    values: dict[Any, dict[str, set[Any]]] = {}
    for row in rows:
        for name, seen in values.setdefault(row["task"], {each.name: set() for each in among}).items():
            seen.add(row[name])
    return {task: [each for each in among if len(seen[each.name] - {None}) > 1] for task, seen in values.items()}


def _differing(row: Row, various: Mapping[Any, Sequence[SettingField]]) -> list[str]:
    """The labels of the row's values in those fields whose values differ between the rows of its task."""
    return [each.about.word(row[each.name]) for each in various[row["task"]] if row[each.name] is not None]


def _shared_options(rows: Sequence[Row]) -> Mapping[Any, set[str]]:
    """By task: those of its options that all of its rows have which have any."""
    shared: dict[Any, set[str]] = {}
    for row in rows:
        if row.get("task_options"):
            options = set(_options(row))
            shared[row["task"]] = shared.get(row["task"], options) & options
    return shared


def _task_options(row: Row, shared: Mapping[Any, set[str]]) -> list[str]:
    """Those of the task's options whose values differ between the rows of its task."""
    if row["task"] not in shared:
        return []
    return [each for each in _options(row) if each not in shared[row["task"]]]


def _options(row: Row) -> list[str]:
    return str(row.get("task_options") or "").split("; ")


def _base(row: Row) -> list[str]:
    """The labels that every name has: processes or GPUs, nodes if several, threads on CPUs, the loader, options."""
    words = {each.name: each.about.word for each in setting_fields()}
    named: list[str] = []

    def add(name: str, word: Callable[[Any], str]) -> None:
        if row.get(name):
            named.append(word(row[name]))

    if row["device"] == "cuda" and row["nodes"] and row["devices_per_node"]:
        named.append(counted(row["nodes"] * row["devices_per_node"], "GPU"))
    else:
        add("world_size", lambda count: counted(count, "proc"))
    if row["nodes"] and row["nodes"] > 1:
        add("nodes", words["nodes"])
    if row["device"] != "cuda":
        add("threads", words["threads"])
    add("loader", words["loader"])
    add("data_workers", words["data_workers"])
    add("chosen_options", str)
    return named


def options_text(options: Mapping[str, Any]) -> str | None:
    """A strategy's options as one short text, such as 'accumulation=2; compression=bf16'; None without options."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return "; ".join(f"{name}={text}" for name, text in sorted(texts.items())) or None


def several(names: Sequence[str]) -> str:
    """a, b, c and 4 more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as '1 GPU' or '1,200 GPUs'."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")
