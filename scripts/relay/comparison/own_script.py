"""How a script of one's own is started as the recommended run was: launcher, threads and backend, as shell lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from relay.comparison.request import Request
from relay.spec.run import Run
from relay.spec.script import Script, filled, started_by_torchrun

SCRIPT = "your_script.py"
PORT = 29500  # torchrun's own
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
    shape, values = run.shape, {"seed": run.seed, "repeat": 0, "node": "$SLURM_NODEID", "port": PORT}
    words = [filled(word, values | {"address": f'{FIRST_NODE}"'}, last=True) for word in script.command]
    command = " ".join(word if "$" in word else shlex.quote(word) for word in words)
    yield f"cd {shlex.quote(str(Path.cwd()))}"
    yield f"export OMP_NUM_THREADS={shape.threads}"
    if script.reported and asked.jobs > 1:
        yield "# it goes on from its last checkpoint: see `relay-chain sbatch`, which submits the next job by itself"
    step = f"srun --cpus-per-task={asked.cpus_per_task}"
    begin = started_by_torchrun(script.command)
    if begin is not None:
        given = {word.partition("=")[0].replace("_", "-") for word in words}
        options = [] if "--nproc-per-node" in given else [f"--nproc-per-node={shape.processes_per_node}"]
        if shape.nodes > 1 and "--rdzv-endpoint" not in given:
            options += [f"--nnodes={shape.nodes}", "--rdzv-backend=c10d", '--rdzv-id="$SLURM_JOB_ID"']
            options += [f'--rdzv-endpoint={FIRST_NODE}:{PORT}"']
        elif shape.nodes == 1 and "--standalone" not in given:
            options += ["--standalone"]
        started = command.split(" ")
        command = " ".join([*started[:begin], *options, *started[begin:]])
    if shape.launcher in ("srun", "direct"):
        ranks = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
        yield f'export MASTER_PORT={PORT} MASTER_ADDR={FIRST_NODE}"'
        each = f"srun --ntasks={shape.world_size} --cpus-per-task={shape.cpus_per_task}"
        yield f"{each} bash -c {shlex.quote(f'{ranks} exec {command}')}"
    else:
        yield f"{step} {command}" if shape.nodes > 1 else command


def _of_strategy(run: Run, asked: Request) -> Iterator[str]:
    shape = run.shape
    yield f"export OMP_NUM_THREADS={shape.threads}"
    if shape.interop_threads > 1:
        yield f"# in the script: torch.set_num_interop_threads({shape.interop_threads})"
    if shape.world_size > 1:
        yield f'# in the script: torch.distributed.init_process_group("{shape.backend}")'
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
        meeting = f'--rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint={FIRST_NODE}:{PORT}"'
        yield (f"{step} torchrun --nnodes={shape.nodes} --nproc-per-node={shape.processes_per_node} {meeting} {SCRIPT}")
    elif shape.launcher in ("torchrun", "direct"):
        yield f"torchrun --standalone --nproc-per-node={shape.processes_per_node} {SCRIPT}"
    else:
        yield f"python {SCRIPT}"
