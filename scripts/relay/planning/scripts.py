"""How a command of the user's is planned: from a combination of its comparison's axes to a setting.

Nothing is known of a script but what it is asked to do. So an axis acts by a placeholder in the command, but for the
shape, which the job itself has. A combination becomes a setting in this order: its shape and its batch; from them the
values of the placeholders; with these the words of the command; and from the words the files that each run is given.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.config.commands import BATCHES, Command, named_files
from relay.config.comparisons import Combination, Comparison
from relay.config.config import Config
from relay.planning import settings, skips
from relay.planning.inputs import Here
from relay.spec.identity import source_digest
from relay.spec.labels import counted
from relay.spec.messages import show
from relay.spec.recipe import Batch, Length, Optimization, SpotChecks
from relay.spec.requirements import Requirements
from relay.spec.run import Setting
from relay.spec.script import OF_A_JOB, Counted, Script, filled, options_given, placeholders, started_by_torchrun
from relay.spec.setting import Computation, Feeding, Launcher, Place, Shape, StrategySpec
from relay.spec.tasks import DatasetSpec, TaskSpec

NEEDS = Requirements()  # a command states none
NO_DATASET = DatasetSpec(name="", version="", train_count=0, test_count=0)  # it brings its own
NOT_CHECKED = SpotChecks(random_steps=0, hops=0, end=False)


def setting_of(
    combination: Combination, command: Command, *, config: Config, stack: str, here: Here
) -> tuple[Setting, list[str]]:
    """The setting of a combination, and why it cannot run, each reason with its remedy. Raises UserError."""
    axes, shape = combination.axes, _shape(combination, here)
    batch = axes["global_batch_size"] or (axes["batch_per_device"] or 0) * shape.devices or config.global_batch_size
    groups: dict[str, Any] = {
        "shape": shape,
        "place": Place(site=here.site.name if here.site else "local"),
        "computation": Computation(**{each.name: axes[each.name] for each in fields(Computation) if each.name in axes}),
        "feeding": Feeding(loader="dataloader", data_workers=axes["data_workers"] or 0),
        "batch": Batch(global_batch_size=batch or 1),
        "optimization": Optimization(**{each.name: axes[each.name] for each in fields(Optimization)}),
        "length": _length(config),
    }
    declared = {each.name: getattr(group, each.name) for group in groups.values() for each in fields(group)}
    given = {name: value for name, value in (declared | _sizes(shape, batch)).items() if value is not None}
    values = given | dict(combination.options)  # of an option, null is a value
    script = _script(combination, command, values, config=config, here=here)
    task = TaskSpec(
        name=command.trained,
        unit=script.counts,
        global_batch_size=batch or 1,
        learning_rate=0.0,
        epochs=1,
        metrics=("accuracy",) if "accuracy" in script.read else (),
    )
    options = dict(combination.options)
    strategy = StrategySpec(name=combination.strategy, stack=stack, options=options, script=script)
    setting = Setting(task=task, dataset=NO_DATASET, strategy=strategy, spot_checks=NOT_CHECKED, **groups)
    reasons = [
        *skips.of_devices(setting, NEEDS, here),
        *_launcher_problems(setting, combination.axes["launcher"], here),
        *_placeholder_problems(placeholders(command.words), values, shape),
    ]
    return setting, reasons


def _shape(combination: Combination, here: Here) -> Shape:
    """The shape. A command starts its node's processes itself, unless the launcher is to start each of them."""
    shape = settings.shape_of(combination, NEEDS, here)
    several: Launcher = "torchrun" if shape.world_size > 1 else "none"
    return replace(shape, launcher=combination.axes["launcher"] or several)


def _length(config: Config) -> Length:
    """A script's run is one step to the workflow, which knows of no other."""
    return Length(
        epochs=1,
        steps_per_epoch=1,
        total_steps=1,
        evaluate_every_steps=1,
        warmup_steps=config.warmup_steps,
        observed_steps=0,
        monitor_seconds=config.monitor_seconds,
    )


def _sizes(shape: Shape, batch: int | None) -> dict[str, int | None]:
    """Placeholders that no declared field has: the numbers of processes, and the batch in three sizes."""
    per_device, per_process = (batch and batch // parts for parts in (shape.devices, shape.world_size))
    batches = dict(zip(BATCHES, (batch, per_device, per_process), strict=True))
    return {"processes_per_node": shape.processes_per_node, "world_size": shape.world_size, **batches}


def _script(
    combination: Combination, command: Command, values: Mapping[str, Any], *, config: Config, here: Here
) -> Script:
    """The command with the placeholders' values. Those without a value stay: a job has some. Raises UserError."""
    comparison = config.comparisons[combination.comparison]
    words = tuple(filled(word, values) for word in command.words)
    named = named_files([filled(word, {}, last=True) for word in words], comparison.links, command.place)
    files = tuple(sorted({*command.files, *named}))
    return Script(
        command=words,
        file=command.file,
        folder=command.folder,
        files=files,
        links=dict(_links(comparison, f"config: comparisons[{combination.comparison}].links", here)),
        read={name: pattern for name, pattern in comparison.read.model_dump().items() if pattern},
        counts=_counts(comparison, command, config),
        reported=command.reports_steps or command.keeps_checkpoints,
        chained=command.keeps_checkpoints,
        source=source_digest(map(Path, files)),
    )


def _links(comparison: Comparison, place: str, here: Here) -> Iterator[tuple[str, str]]:
    """Each link's path and its whole target. Raises UserError for one that cannot be, or leads nowhere.

    On a cluster, a whole path is not looked for: it may be one of the nodes' own disks.
    """
    for name, target in comparison.links.items():
        up = Path(name).parts.count("..")
        if Path(name).is_absolute() or name.startswith("~") or up >= len(Path.cwd().parts):
            raise UserError(
                f"{place}: {show(name)} is not allowed; allowed: a path as seen from where the command runs, such as "
                "data or ../data"
            )
        path = Path(target).expanduser()
        if (here.site is None or not path.is_absolute()) and not path.exists():
            raise UserError(f"{place}.{name}: {path.absolute()}: no such file or folder")
        yield name, str(path.absolute())


def _counts(comparison: Comparison, command: Command, config: Config) -> Counted:
    """What the speed counts: samples where somebody says how many there are."""
    if comparison.read.samples_per_second or comparison.read.step or command.reports_steps:
        return "samples"
    if not command.keeps_checkpoints:
        return "runs"
    batch_given = any(getattr(comparison, name) != [None] for name in BATCHES[:2]) or config.global_batch_size
    return "samples" if batch_given else "steps"


def _launcher_problems(setting: Setting, launcher: Launcher | None, here: Here) -> Iterator[str]:
    """Why the processes cannot be started so; `launcher` is the one that the comparison gives."""
    shape, script = setting.shape, setting.strategy.script
    assert script is not None
    if launcher == "torchrun":
        yield "launcher torchrun is for strategies; write torchrun into the command"
    if launcher in ("spawn", "horovodrun"):
        yield f"launcher {launcher} is for strategies; use torchrun in the command, or launcher srun or direct"
    if launcher == "srun" and not (here.site or here.held):
        remedy = "use launcher direct, which starts the command once per process"
        yield f"launcher srun needs a cluster profile, or an allocation; {remedy}"
    if launcher == "direct" and shape.nodes > 1:
        yield f"launcher direct works on one node only, nodes is {shape.nodes}; use launcher srun"
    if launcher == "direct" and shape.world_size > 1 and setting.strategy.stack == "horovod":
        remedy = "write horovodrun -np {world_size} into the command, without a launcher"
        yield f"launcher direct leaves each of Horovod's processes alone, as rank 0 of 1; {remedy}"
    if launcher == "none" and shape.world_size > 1:
        yield f"launcher none is for one process, {shape.world_size} are asked for; leave it out"
    begin = started_by_torchrun(script.command)
    started = options_given(script.command, begin).get("--nproc-per-node", "") if begin is not None else ""
    if started.isdecimal() and int(started) != shape.processes_per_node:
        ranks = counted(int(started), "process")
        yield (
            f"the command starts {ranks} on a node (--nproc-per-node), and {shape.processes_per_node} are "
            "asked for; leave that option out, or write {processes_per_node}"
        )


def _placeholder_problems(used: Collection[str], values: Mapping[str, Any], shape: Shape) -> Iterator[str]:
    """Why the placeholders that a command uses have no values, or a batch cannot be divided as they ask for."""
    batch, batches = values.get(BATCHES[0]), sorted({*used} & {*BATCHES})
    if batches and batch is None:
        yield f"placeholder {{{batches[0]}}} has no value; give global_batch_size or batch_per_device"
    elif batch is not None:
        for name, parts, unit in ((BATCHES[1], shape.devices, "devices"), (BATCHES[2], shape.world_size, "processes")):
            if name in used and batch % parts:
                yield f"global_batch_size {batch} is not divisible by {parts} {unit}"
    for name in sorted({*used} - {*values, *OF_A_JOB, *BATCHES}):
        yield f"placeholder {{{name}}} has no value; give {name} in the comparison"


OF_TASKS = ("card", "data", "equivalence", "export", "largest_model", "libtorch", "probe", "selftest", "spot_check")


def refusals(config: Config, targets: Collection[str]) -> list[str]:
    """Why these targets of Snakemake cannot be made: a command is no task."""
    if not any(comparison.command for comparison in config.comparisons):
        return []
    of_tasks = sorted({*targets} & {*OF_TASKS})
    return [f"target '{name}': is for tasks, and the config measures commands as they stand" for name in of_tasks]
