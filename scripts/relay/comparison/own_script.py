"""How a script of one's own is started as the recommended run was: launcher, threads and backend, as shell lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from relay.comparison.request import Request
from relay.process import meeting
from relay.spec.run import Run
from relay.spec.script import MEETING, Script, filled, options_given, placeholders, started_by_torchrun
from relay.spec.setting import Shape

SCRIPT = "your_script.py"
PORT = 29500  # torchrun's own
# As a measured run meets. `--standalone`, and backend c10d at an address, read pickles at a port that is open to all.
ON_ONE_NODE = (*meeting.TORCHRUN, "--rdzv-endpoint={folder}/agent")
ON_SEVERAL = ("--rdzv-backend=static", "--node-rank={node}", "--master-addr={address}", "--master-port={port}")
OF_JOB = {"node": "${SLURM_NODEID}", "address": "${MASTER_ADDR}", "port": "${MASTER_PORT}", "folder": "$(mktemp -d)"}
FIRST_NODE = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def own_script(run: Run, asked: Request) -> list[str]:
    """The lines, for a job that asks for what is `asked`. What the script has to do itself stands in comments."""
    return list(_lines(run, asked))


def _lines(run: Run, asked: Request) -> Iterator[str]:
    if run.strategy.script:
        yield from _of_command(run, run.strategy.script, asked)
    else:
        yield from _of_strategy(run, asked)


def _of_command(run: Run, script: Script, asked: Request) -> Iterator[str]:
    """How the measured command is started without this project, in the folder of the script."""
    shape, words = run.shape, list(script.command)
    yield f"cd {shlex.quote(str(Path.cwd()))}"
    yield f'export OMP_NUM_THREADS={shape.threads} MASTER_PORT={PORT} MASTER_ADDR={FIRST_NODE}"'
    if script.chained and asked.jobs > 1:
        yield "# it goes on from its last checkpoint: `relay-chain sbatch` submits one job after the other"
    begin = started_by_torchrun(words)
    if begin is not None:
        words[begin:begin] = _meeting(words, begin, run)
    command = " ".join(_in_shell(word, {**OF_JOB, "seed": str(run.seed), "repeat": "0"}) for word in words)
    if shape.launcher in ("srun", "direct"):
        ranks = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
        each = f"srun --ntasks={shape.world_size} --cpus-per-task={shape.cpus_per_task}"
        yield f"{each} bash -c {shlex.quote(f'{ranks} exec {command}')}"
    elif shape.nodes > 1:
        yield f"srun --cpus-per-task={asked.cpus_per_task} bash -c {shlex.quote(f'exec {command}')}"
    else:
        yield command


def _meeting(words: Sequence[str], begin: int, run: Run) -> list[str]:
    """The options of torchrun that a command lacks."""
    given, shape = options_given(words, begin), run.shape
    more = [] if "--nproc-per-node" in given else [f"--nproc-per-node={shape.processes_per_node}"]
    if shape.nodes == 1:
        return [*more, *(() if given.keys() & {*MEETING} else ON_ONE_NODE)]
    if given.keys() & {"--rdzv-backend", "--rdzv-endpoint"}:
        return more
    more += [] if "--nnodes" in given else [f"--nnodes={shape.nodes}"]
    return [*more, *(option for option in ON_SEVERAL if option.partition("=")[0] not in given)]


def _in_shell(word: str, of_job: Mapping[str, str]) -> str:
    """A word as a shell reads it: nothing in it is replaced but what a job knows."""
    if not set(placeholders([word])) & OF_JOB.keys():
        return shlex.quote(filled(word, of_job, last=True))
    escaped = re.sub(r'([\\"$`])', r"\\\1", word)
    return f'"{filled(escaped, of_job, last=True)}"'


def _of_strategy(run: Run, asked: Request) -> Iterator[str]:
    shape = run.shape
    yield f"export OMP_NUM_THREADS={shape.threads}"
    if shape.interop_threads > 1:
        yield f"# in the script, first of all: torch.set_num_interop_threads({shape.interop_threads})"
    if run.computation.channels_last:
        yield "# Images were measured with the channels of each pixel side by side. The model stays as it is."
        yield "# in the script, in each step: images = images.contiguous(memory_format=torch.channels_last)"
    if run.computation.compile:
        yield "# in the script, before the first step: model.compile()"
    if shape.world_size > 1:
        yield f'# in the script, first of all: torch.distributed.init_process_group("{shape.backend}")'
    step = f"srun --cpus-per-task={asked.cpus_per_task}"
    if shape.launcher == "srun":
        yield "# in the script: RANK is SLURM_PROCID, WORLD_SIZE is SLURM_NTASKS, LOCAL_RANK is SLURM_LOCALID"
        yield f'export MASTER_PORT={PORT} MASTER_ADDR={FIRST_NODE}"'
        yield f"{step} python {SCRIPT}"
    elif shape.launcher == "spawn":
        yield f"# in the script: torch.multiprocessing.spawn(…, nprocs={shape.processes_per_node})"
        yield f"python {SCRIPT}"
    elif shape.launcher == "horovodrun":
        yield f"horovodrun -np {shape.processes_per_node} python {SCRIPT}"
    elif shape.launcher == "torchrun" and shape.nodes > 1:
        yield f'export MASTER_PORT={PORT} MASTER_ADDR={FIRST_NODE}"'
        yield f"{step} bash -c {shlex.quote(f'exec {_torchrun(shape, ON_SEVERAL)}')}"
    elif shape.launcher in ("torchrun", "direct"):
        yield _torchrun(shape, ON_ONE_NODE)
    else:
        yield f"python {SCRIPT}"


def _torchrun(shape: Shape, where: Sequence[str]) -> str:
    count = f"--nproc-per-node={shape.processes_per_node}"
    nodes = [f"--nnodes={shape.nodes}"] if shape.nodes > 1 else []
    return " ".join(["torchrun", *nodes, count, *(_in_shell(word, OF_JOB) for word in where), SCRIPT])
