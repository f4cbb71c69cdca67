"""A comparison shrunk to a laptop: the same settings on a few processes of one machine, to try the config out."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.config.comparisons import AXES, Comparison
from relay.config.config import Config, load
from relay.spec import strategy_files

REPEATS, EPOCHS, GATE_STEPS = 2, 1.0, 40
# Of one machine. Four processes on two cores are slow, but they are what some strategies need at least.
MOST = {"devices_per_node": 4, "processes_per_device": 4, "cpus_per_task": 2, "threads": 2, "data_workers": 2}
WARNING = "shrink: true: the comparison is shrunk to a laptop, and its figures say nothing of the whole one"


def applied(config: Config) -> Config:
    """The config as it was given or, where it says `shrink: true`, shrunk.

    Raises UserError for a mistake in `shrunk`, in either case.
    """
    if not config.shrink and not config.shrunk:
        return config
    if nested := sorted({"shrink", "shrunk"} & config.shrunk.keys()):
        raise UserError(f"config: shrunk.{nested[0]}: is not allowed there; allowed: keys that shrinking replaces")
    small = _with(config, config.shrunk)
    if not config.shrink:
        return config
    strategy_paths = strategy_files.find([Path(folder) for folder in small.strategy_folders])
    comparisons: list[Comparison] = []
    epochs = small.epochs if "epochs" in config.shrunk and small.epochs else min(small.epochs or EPOCHS, EPOCHS)
    for each in small.comparisons:
        shrunk = _comparison(each, strategy_paths, epochs)
        if shrunk not in comparisons:  # such as one and two nodes, which are one machine now
            comparisons.append(shrunk)
    update: dict[str, Any] = {
        "device": "cpu",
        "repeats": min(small.repeats, REPEATS),
        "gate": small.gate.model_copy(update={"steps": min(small.gate.steps, GATE_STEPS)}),
        "comparisons": comparisons,
        "epochs": epochs,
    }
    return small.model_copy(update=update)


def _with(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with these keys replaced; blocks are merged key by key."""
    given = config.model_dump(exclude_unset=True)
    for name, value in changes.items():
        block = given.get(name)
        given[name] = {**block, **value} if isinstance(block, dict) and isinstance(value, dict) else value
    try:
        return load(given)
    except UserError as error:
        raise UserError(str(error).replace("config: ", "config: shrunk.")) from None


def _comparison(given: Comparison, strategy_paths: Mapping[str, Path], epochs: float) -> Comparison:
    """A comparison on one machine: nodes become processes, and a strategy for GPUs becomes the one that stands for it.

    An unknown strategy stays, and is refused by the planner.
    """
    axes: dict[str, list[Any]] = {name: getattr(given, name) for name in AXES}
    update: dict[str, Any] = {
        name: _distinct(value if value is None else min(value, most) for value in axes[name])
        for name, most in MOST.items()
    }
    sizes = (nodes * devices for nodes in axes["nodes"] for devices in axes["devices_per_node"])
    warm_ups = axes["learning_rate_warmup_epochs"]
    update["learning_rate_warmup_epochs"] = _distinct(each if each is None else min(each, epochs) for each in warm_ups)
    update |= {"nodes": [1], "devices_per_node": _distinct(min(size, MOST["devices_per_node"]) for size in sizes)}
    if given.repeats:
        update["repeats"] = min(given.repeats, REPEATS)
    needs = strategy_files.read(strategy_paths[given.strategy]) if given.strategy in strategy_paths else None
    if needs and "cpu" not in needs.devices and (twin := needs.twin):  # one that needs GPUs
        options = strategy_files.read(strategy_paths[twin]).options
        update["strategy"] = twin
        update["options"] = {name: values for name, values in given.options.items() if name in options}
    return given.model_copy(update=update)


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
