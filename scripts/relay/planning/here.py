"""What the driver can know before any job starts: whether this machine, its folders and Slurm serve the plan."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from relay.base.errors import NoNode, Unavailable, UserError
from relay.datasets.files import check_root, folder_of
from relay.datasets.manifest import MANIFEST
from relay.datasets.public import SOURCES
from relay.environments import login_node
from relay.planning import gpus, shapes
from relay.planning.plan import Plan
from relay.slurm import commands
from relay.spec.setting import Shape


def check(plan: Plan, results: Path = Path("results")) -> None:
    """Raises UserError with a line for each thing that the plan needs and that is not here.

    For the driver alone: a job's node may see other folders.
    """
    if lines := [*_partitions(plan), *_gpus(plan), *_data(plan, results)]:
        raise UserError("\n".join(lines))


def unready(plan: Plan) -> list[str]:
    """What the user must fill in before jobs can be submitted, one line for each thing."""
    if plan.site is None:
        return []
    needed = [planned.setting.shape for planned in plan.settings]
    needed += [proof.shape for proofs in (plan.gates, plan.references, plan.spot_checks) for proof in proofs.values()]
    partitions = (shapes.partition_for(shape, plan.site, plan.config)[0] for shape in needed)
    used = [partition for partition in partitions if partition]
    missing = [*plan.site.missing(plan.config.runtime_minutes, used), *login_node.unready(plan.site)]
    missing += plan.stacks.unrecorded
    return [*missing, *unfit_paths(Path.cwd(), plan.root.resolve(), sys.prefix, plan.config.task)]


def unfit_paths(*paths: str | Path) -> Iterator[str]:
    """A line for each file or folder whose name fails in a Slurm job, or would run as a command.

    Snakemake's Slurm plugin puts the job's command into double quotes, where the shell expands these characters.
    """
    for path in dict.fromkeys(map(str, paths)):
        if unfit := next((each for each in path if each in "$`\\" or not each.isprintable()), None):
            shown, named = (text if text.isprintable() else repr(text) for text in (unfit, path))
            yield f"{named}: Slurm jobs cannot work with {shown} in a path; rename it"


def _partitions(plan: Plan) -> Iterator[str]:
    if plan.site and not plan.site.partitions:
        yield f"{plan.site.file}: partitions: missing; add at least one (`sinfo` lists them)"


def _gpus(plan: Plan) -> Iterator[str]:
    asked = any(planned.setting.shape.device == "cuda" for planned in plan.settings)
    if plan.site is None and plan.config.device == "cuda" and asked:
        count, why = gpus.usable()
        if not count:
            yield f"config: device: 'cuda' is not allowed: this machine has no usable GPU: {why}; allowed: auto, cpu"


def _data(plan: Plan, results: Path) -> Iterator[str]:
    """Whether the folders that the data is taken from are there, as long as it is not prepared yet."""
    config = plan.config
    own = [each.setting for each in plan.settings if each.setting.dataset.name]  # a script brings its own data
    datasets = {setting.dataset.directory_name: setting for setting in own}
    for directory, setting in datasets.items():
        if (results / "datasets" / directory / MANIFEST).exists():
            continue
        try:
            if config.dataset_root:
                source = None if setting.task.file else SOURCES.get(setting.dataset.name)
                check_root(Path(config.dataset_root).expanduser(), source)
            elif config.dataset_mirror and urlsplit(config.dataset_mirror).scheme == "file":
                folder_of(config.dataset_mirror)
        except UserError as error:
            yield f"config: {error}"


@dataclass(frozen=True)
class ExpectedStart:
    """A line for the user: when the queue would start a job of some shape if it were submitted now.

    `refused` is true where Slurm would not accept the job, `waits` where it would queue it until nodes are back; the
    line then has Slurm's reason.
    """

    line: str
    refused: bool = False
    waits: bool = False


@cache  # Slurm takes a moment for each
def expected(plan: Plan) -> tuple[ExpectedStart, ...]:
    """For a job of each shape: when the queue would start it, or why Slurm refuses it. Nothing without Slurm."""
    return tuple(_expected(plan))


def refused(starts: Iterable[ExpectedStart]) -> list[str]:
    """Why Slurm would refuse a job, one line for each shape."""
    return [start.line for start in starts if start.refused]


def _expected(plan: Plan) -> Iterator[ExpectedStart]:
    if plan.site is None or not commands.available():
        return
    now = datetime.now().astimezone()
    of_shape = {plan.preflight(run): run for run in plan.runs}
    for each in (of_shape[shape] for shape in plan.preflights if shape in of_shape):  # runs are in a random order
        job = plan.job(each)
        assert job is not None
        what = f"a job of {_words(each.shape)}, {job.tasks} × {job.cpus_per_task} CPUs"
        try:
            start = commands.expected_start(shapes.sbatch_flags(job, plan.site), job.partition)
        except Unavailable as error:
            yield ExpectedStart(f"expected start of {what}: not known: {error}")
        except NoNode as error:
            told = f"warning: Slurm would queue {what}, and can start it on no node now: {error}"
            yield ExpectedStart(told, waits=True)
        except UserError as error:
            yield ExpectedStart(f"Slurm refuses, for {plan.site.file}, {what}: {error}", refused=True)
        else:
            minutes = max(0.0, (start - now).total_seconds() / 60) if start else 0.0
            yield ExpectedStart(f"expected start of {what}: in {minutes:.0f} minutes, says sbatch --test-only")


def _words(shape: Shape) -> str:
    return f"{shape.nodes} × {shape.devices_per_node} {shape.device}"
