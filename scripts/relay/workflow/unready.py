"""What a call needs that is not here, one line for each thing: partitions, a GPU, data, what only the user knows."""

import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from relay.base.errors import UserError
from relay.datasets.files import check_root, folder_of
from relay.datasets.manifest import MANIFEST
from relay.datasets.public import SOURCES
from relay.environments import login_node
from relay.planning.plan import Plan
from relay.process.gpus import visible
from relay.slurm import shapes


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

    Snakemake's Slurm plugin puts the job's command into double quotes, where the shell expands $ and `. Snakemake
    quotes a word as Python does, which is not as a shell does where both kinds of quotes are in it, and formats paths
    with braces. Slurm expands % in the path of a job's log, which is below the working folder, and the job then ends
    without a word.
    """
    for path in dict.fromkeys(map(str, paths)):
        forbidden = "$`\\{}" + '"' * ("'" in path) + "%" * (path == str(Path.cwd()))
        if unfit := next((each for each in path if each in forbidden or not each.isprintable()), None):
            shown, named = (text if text.isprintable() else repr(text) for text in (unfit, path))
            yield f"{named}: Slurm jobs cannot work with {shown} in a path; rename it"


def _partitions(plan: Plan) -> Iterator[str]:
    if plan.site and not plan.site.partitions:
        yield f"{plan.site.file}: partitions: missing; add at least one (`sinfo` lists them)"


def _gpus(plan: Plan) -> Iterator[str]:
    on_gpus = any(planned.setting.shape.device == "cuda" for planned in plan.settings)
    if plan.site is None and plan.config.device == "cuda" and on_gpus:
        shown = visible()
        if not shown.kinds:
            why = f"this machine has no usable GPU: {shown.why}"
            yield f"config: device: 'cuda' is not allowed: {why}; allowed: auto, cpu"


def _data(plan: Plan, results: Path) -> Iterator[str]:
    """Whether the folders that the data is taken from are there, as long as it is not prepared yet, and are read."""
    config = plan.config
    own = [each.setting for each in plan.settings if each.setting.dataset.name]  # a script brings its own data
    datasets = {setting.dataset.directory_name: setting for setting in own}
    for directory, setting in datasets.items():
        source = None if setting.task.file else SOURCES.get(setting.dataset.name)
        if (results / "datasets" / directory / MANIFEST).exists():
            continue
        try:
            if config.dataset_root:
                check_root(Path(config.dataset_root).expanduser(), source)
            elif config.dataset_mirror and urlsplit(config.dataset_mirror).scheme == "file":
                folder_of(config.dataset_mirror)
        except UserError as error:
            yield f"config: {error}"
