"""How a script of one's own is started as the recommended run was: launcher, threads and backend, as shell lines."""

from __future__ import annotations

from collections.abc import Iterator

from relay.comparison.request import Request
from relay.spec.run import Run

SCRIPT = "your_script.py"
PORT = 29500  # torchrun's own
FIRST_NODE = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def own_script(run: Run, asked: Request) -> list[str]:
    """The lines, for a job that asks for what is `asked`. What the script has to do itself stands in comments."""
    return list(_lines(run, asked))


def _lines(run: Run, asked: Request) -> Iterator[str]:
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
