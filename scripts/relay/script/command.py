"""The command of a run on one node, or of one of its processes: its words, its folder and its environment."""

from __future__ import annotations

import filecmp
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from relay.base.entry import SAFE_PATH
from relay.base.errors import UserError
from relay.chain.telling import NOTE, PLACE
from relay.datasets.vision import needs_help
from relay.launch.command_lines import free_port
from relay.launch.torchrun import SHUTDOWN
from relay.process import meeting
from relay.process.cpus import BINDING
from relay.run_folder.places import FOLDER
from relay.run_folder.snapshot import OWN_SCRIPT, PACKAGE
from relay.spec.run import Training
from relay.spec.script import MEETING, Script, file_argument, filled, options_given, started_by_torchrun

PYTHONS = ("python", "python3")


@dataclass(frozen=True)
class Here:
    """Which command of the run this process starts: that of a node, or, with `per_process`, that of one process.

    `rank` is the node's number or the process's. `address` and `port` are where all of them meet.
    """

    rank: int
    local_rank: int
    node: int
    per_process: bool
    address: str
    port: int

    @classmethod
    def of(cls, run: Training, environment: Mapping[str, str]) -> Here:
        """From what the launcher has set."""
        per_process = run.shape.launcher in ("srun", "direct")
        node = int(environment.get("SLURM_NODEID", "0")) if run.shape.nodes > 1 else 0
        rank = int(environment.get("RANK", "0")) if per_process else node
        local_rank = int(environment.get("LOCAL_RANK", "0")) if per_process else 0
        port = environment.get("MASTER_PORT")
        address = environment.get("MASTER_ADDR", "127.0.0.1")
        return cls(rank, local_rank, node, per_process, address, int(port) if port else free_port())


def folder_of(work: Path, script: Script) -> Path:
    """The folder in which the command runs, once what is frozen lies there, and the links, as at home.

    Raises UserError for a link whose target is not there.
    """
    tree = (work / FOLDER).absolute()
    folder = tree / script.within
    folder.mkdir(parents=True, exist_ok=True)
    for name in map(script.frozen_name, script.files):
        _copy(PACKAGE.parent / OWN_SCRIPT / name, tree / name)
    for name, target in script.links.items():
        if not Path(target).exists():
            raise UserError(f"links.{name}: {target}: no such file or folder; allowed: what the nodes can see")
        _link(Path(os.path.normpath(folder / name)), Path(target))
    return folder


def _copy(frozen: Path, place: Path) -> None:
    """Lay out a frozen file, and code anew where the command has changed it. Other ranks may do the same meanwhile.

    What else the command has changed is its own state, such as a checkpoint that it names: it goes on from there.
    """
    is_there = place.is_file() and not place.is_symlink()
    if is_there and (place.suffix != ".py" or filecmp.cmp(frozen, place, shallow=False)):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{os.uname().nodename}.{os.getpid()}")
    shutil.copy(frozen, partial)
    partial.replace(place)


def _link(place: Path, target: Path) -> None:
    """Link to a target. Of a folder that has files of the run's, all others are linked."""
    if place.is_dir() and not place.is_symlink() and target.is_dir():
        for each in target.iterdir():
            _link(place / each.name, each)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another rank was first
            place.symlink_to(target)


# What srun and MPI's launchers tell a process of its step.
OF_A_STEP = ("PMI_", "PMIX_", "OMPI_", "SLURM_STEP", "SLURM_TASK", "SLURM_GTIDS", "SLURM_SRUN_", "SLURM_LAUNCH_")


def variables(run: Training, here: Here, work: Path, attempt: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of the command. A script that is written for srun finds what srun would set."""
    shape, exported = run.shape, dict(environment)
    ranks = () if here.per_process else ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    # OpenMP's places would bind torchrun, or a process with its data workers, to one core, and all that they start.
    for name in (SAFE_PATH, *BINDING, *ranks):
        exported.pop(name, None)
    paths = [str(PACKAGE.parent), exported.get("PYTHONPATH")]
    if needs_help():
        paths.insert(0, str(PACKAGE / "script" / "beside"))
    exported["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    exported["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), exported.get("PATH", os.defpath)])
    exported |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(shape.threads)}
    for_job = {"CPUS_PER_TASK": shape.cpus_per_task, "GPUS_ON_NODE": shape.gpus_per_node}
    for_job |= {"NNODES": shape.nodes, "JOB_NUM_NODES": shape.nodes}
    exported |= {PLACE: str((work / "records" / f"report-{attempt:04}.txt").absolute())}
    exported |= {NOTE: str((work / "records" / f"note-{attempt:04}.json").absolute())}
    exported = {**SHUTDOWN, **exported}
    exported.setdefault("SLURM_TMPDIR", exported.get("TORCH_RELAY_NODE_DISK") or tempfile.gettempdir())
    exported.setdefault("SLURM_JOB_NODELIST", socket.gethostname())
    exported.setdefault("SLURM_SUBMIT_DIR", str(Path.cwd()))
    if here.per_process:
        of_step = {"PROCID": here.rank, "LOCALID": here.local_rank, "NODEID": here.node, "NTASKS": shape.world_size}
        for_job |= of_step | {"NTASKS_PER_NODE": shape.processes_per_node}
        if shape.launcher != "srun":  # a step that is around this one, as in an interactive shell, is another's
            exported = {name: value for name, value in exported.items() if not name.startswith(OF_A_STEP)}
    exported |= {f"SLURM_{name}": str(value) for name, value in for_job.items()}
    exported.setdefault("GPUS_PER_NODE", str(shape.gpus_per_node))
    return exported


def words(run: Training, repeat: int, here: Here, work: Path, environment: Mapping[str, str]) -> list[str]:
    """The words of the command. Raises UserError where its program is not found, or cannot be executed."""
    script = run.strategy.script
    assert script is not None
    tree = (work / FOLDER).absolute()
    values = {"seed": run.seed, "repeat": repeat, "node": here.node, "address": here.address, "port": here.port}
    command = [_place(filled(word, values, last=True), script, tree) for word in script.command]
    command = [*_meeting(command, run, here, environment)] if started_by_torchrun(command) else command
    program = command[0]
    if program == "torchrun":
        return [sys.executable, "-P", "-m", "torch.distributed.run", *command[1:]]
    if program in PYTHONS:
        return [sys.executable, *command[1:]]
    program = str(tree / script.within / program) if "/" in program else program
    executable = shutil.which(program, path=environment["PATH"])
    if executable is None:
        there = "is not executable" if Path(program).is_file() else "is not found"
        raise UserError(
            f"the command's program '{program}' {there}; allowed: a program of stack {run.stack}, or of the node's PATH"
        )
    return [executable, *command[1:]]


def _place(word: str, script: Script, tree: Path) -> str:
    """A word that names a frozen file by its whole path, as that of its copy. A relative path leads there by itself."""
    option, path = file_argument(word)
    if Path(path).is_absolute() and (file := os.path.normpath(path)) in script.files:
        return f"{option}{tree / script.frozen_name(file)}"
    return word


def _meeting(command: Sequence[str], run: Training, here: Here, environment: Mapping[str, str]) -> list[str]:
    """A command of torchrun with the options that it lacks: how many processes it starts, and where nodes meet."""
    begin = started_by_torchrun(command) or 1
    given, shape, more = {*options_given(command, begin)}, run.shape, []
    if "--nproc-per-node" not in given:
        more.append(f"--nproc-per-node={shape.processes_per_node}")
    if shape.nodes == 1:
        ours = [*meeting.TORCHRUN, f"--rdzv-endpoint={environment[meeting.VARIABLE]}/agent"]
        more += [] if given & {*MEETING} else ours
    elif not given & {"--rdzv-backend", "--rdzv-endpoint"}:
        options = {"--nnodes": shape.nodes, "--node-rank": here.node, "--rdzv-backend": "static"}
        options |= {"--master-addr": here.address, "--master-port": here.port}
        more += [f"{name}={value}" for name, value in options.items() if name not in given]
    return [*command[:begin], *more, *command[begin:]]
