"""From a comparison that names a command to settings: what the command is, what its placeholders become, what it lacks.

Nothing is known of a script but what it is asked to do. So an axis acts by a placeholder in the command, but for the
shape, which the job itself has; an axis that would change nothing is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.config.commands import BATCHES, Command, named_files
from relay.config.comparisons import Comparison
from relay.config.config import Config
from relay.config.expansion import Combination
from relay.planning import settings, skips
from relay.planning.settings import Here
from relay.spec.dataset import DatasetSpec
from relay.spec.identity import source_digest
from relay.spec.messages import show
from relay.spec.recipe import Batch, Length, Optimization
from relay.spec.requirements import Requirements
from relay.spec.run import GROUPS, Setting
from relay.spec.script import (
    OF_A_JOB,
    Counted,
    Script,
    filled,
    options_given,
    placeholders,
    started_by_torchrun,
)
from relay.spec.setting import Computation, Feeding, Launcher, Place, Shape, StrategySpec
from relay.spec.spot_checks import SpotChecks
from relay.spec.tasks import TaskSpec

NO_DATASET = DatasetSpec(name="", version="", train_count=0, test_count=0)
NEEDS = Requirements()


def _counts(comparison: Comparison, command: Command, config: Config) -> Counted:
    """What the speed counts."""
    batch = any(getattr(comparison, name) != [None] for name in BATCHES[:2]) or config.global_batch_size
    read = comparison.read
    if read.samples_per_second or read.step or command.tells_samples:
        return "samples"
    if command.reported:
        return "samples" if batch else "steps"
    return "runs"


def resolve(combination: Combination, command: Command, *, config: Config, stack: str, here: Here) -> Setting:
    """The setting of a combination, with every default and every placeholder filled in. Raises UserError."""
    comparison = config.comparisons[combination.comparison]
    axes, shape = combination.axes, _shape(combination, here)
    batch = axes["global_batch_size"] or (axes["batch_per_device"] or 0) * shape.devices or config.global_batch_size
    read = {name: pattern for name, pattern in comparison.read.model_dump().items() if pattern}
    counts = _counts(comparison, command, config)
    setting = Setting(
        task=TaskSpec(
            name=command.trained,
            unit=counts,
            global_batch_size=batch or 1,
            learning_rate=0.0,
            epochs=1,
            metrics=("accuracy",) if "accuracy" in read else (),
        ),
        dataset=NO_DATASET,
        strategy=StrategySpec(name=combination.strategy, stack=stack, options=dict(combination.options)),
        shape=shape,
        place=Place(site=here.site.name if here.site else "local"),
        computation=Computation(**{each.name: axes[each.name] for each in fields(Computation) if each.name in axes}),
        feeding=Feeding(loader="dataloader", data_workers=axes["data_workers"] or 0),
        batch=Batch(global_batch_size=batch or 1),
        optimization=Optimization(**{each.name: axes[each.name] for each in fields(Optimization)}),
        length=_length(config),
        spot_checks=SpotChecks(random_steps=0, hops=0, end=False),
    )
    values = _values(setting, batch, combination.options)
    words = tuple(filled(word, values) for word in command.words)
    plain = [filled(word, {}, last=True) for word in words]
    files = tuple(sorted({*command.files, *named_files(plain, comparison.links, command.place)}))
    script = Script(
        command=words,
        file=command.file,
        folder=command.folder,
        files=files,
        links=dict(_links(comparison, f"config: comparisons[{combination.comparison}].links", here)),
        read=read,
        counts=counts,
        reported=command.reported,
        chained=command.chained,
        source=source_digest(map(Path, files)),
    )
    return replace(setting, strategy=replace(setting.strategy, script=script))


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


def _values(setting: Setting, batch: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the placeholders, without those that nobody gave."""
    groups = (getattr(setting, name) for name, _ in GROUPS)
    values = {each.name: getattr(group, each.name) for group in groups for each in fields(group)}
    shape = setting.shape
    values |= {"processes_per_node": shape.processes_per_node, "world_size": shape.world_size}
    values["global_batch_size"] = batch
    if batch is not None:
        values["batch_per_device"] = batch // shape.devices
        values["batch_per_process"] = batch // shape.world_size
    return {name: value for name, value in values.items() if value is not None} | dict(options)


def problems(combination: Combination, setting: Setting, command: Command, here: Here) -> Iterator[str]:
    """Why the setting cannot run, each reason with its remedy; none where it can."""
    shape, script = setting.shape, setting.strategy.script
    assert script is not None
    yield from skips.of_devices(setting, NEEDS, here)
    if shape.threads > shape.cpus_per_task:
        yield f"threads {shape.threads} exceed cpus_per_task {shape.cpus_per_task}"
    if combination.axes["launcher"] == "torchrun":
        yield "launcher torchrun is for strategies; write torchrun into the command"
    if shape.launcher in ("spawn", "horovodrun"):
        yield f"launcher {shape.launcher} is for strategies; use torchrun in the command, or launcher srun or direct"
    if shape.launcher == "srun" and not (here.site or here.held):
        remedy = "use launcher direct, which starts the command once per process"
        yield f"launcher srun needs a cluster profile, or an allocation; {remedy}"
    if shape.launcher == "direct" and shape.nodes > 1:
        yield f"launcher direct works on one node only, nodes is {shape.nodes}; use launcher srun"
    if shape.launcher == "direct" and shape.world_size > 1 and setting.strategy.stack == "horovod":
        remedy = "write horovodrun -np {world_size} into the command, without a launcher"
        yield f"launcher direct leaves each of Horovod's processes alone, as rank 0 of 1; {remedy}"
    if shape.launcher == "none" and shape.world_size > 1:
        yield f"launcher none is for one process, {shape.world_size} are asked for; leave it out"
    begin = started_by_torchrun(script.command)
    started = options_given(script.command, begin).get("--nproc-per-node", "") if begin is not None else ""
    if started.isdecimal() and int(started) != shape.processes_per_node:
        yield (
            f"the command starts {started} processes on a node (--nproc-per-node), and {shape.processes_per_node} are "
            "asked for; leave that option out, or write {processes_per_node}"
        )
    used, missing = {*placeholders(command.words)}, {*placeholders(script.command)}
    batch, given = setting.batch.global_batch_size, {*BATCHES} & used
    for parts, unit, name in ((shape.devices, "devices", BATCHES[1]), (shape.world_size, "processes", BATCHES[2])):
        if name in used - missing and batch % parts:
            yield f"global_batch_size {batch} is not divisible by {parts} {unit}"
    if given and any(name in missing for name in given):
        yield f"placeholder {{{min(given)}}} has no value; give global_batch_size or batch_per_device"
    for name in sorted(missing):
        if name not in (*OF_A_JOB, *BATCHES):
            yield f"placeholder {{{name}}} has no value; give {name} in the comparison"


OF_TASKS = ("card", "data", "equivalence", "export", "largest_model", "libtorch", "probe", "selftest", "spot_check")


def refusals(config: Config, targets: Collection[str]) -> list[str]:
    """Why these targets of Snakemake cannot be made: a command is no task."""
    if not any(comparison.command for comparison in config.comparisons):
        return []
    of_tasks = sorted({*targets} & {*OF_TASKS})
    return [f"target '{name}': is for tasks, and the config measures commands as they stand" for name in of_tasks]
