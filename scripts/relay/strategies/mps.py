"""Several replicas on one device (document 000): a small model at a small batch leaves most of a GPU idle.

NCCL refuses processes that share a GPU, so that gradients are averaged with gloo, or with MPI where torch has it.
NVIDIA's Multi-Process Service (MPS) lets the replicas compute at the same time; without it, they take turns. On CPUs,
the replicas share the cores.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.base.errors import UserError
from relay.environments.node_folder import own_folder
from relay.process import mps_daemon
from relay.spec.identity import fingerprint
from relay.strategies.base import Requirements
from relay.strategies.ddp import DDP

# Together, the values of these variables identify one start of a run's processes on a node.
START = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT")
LONGEST_PATH = 80  # of the folder with the daemon's sockets; Linux allows 107 characters for a socket's path


class MPS(DDP):
    """Data parallelism with gloo or MPI, with `processes_per_device` processes on each device."""

    requirements = Requirements(
        processes="several per device", backends=("gloo", "mpi"), divides=("samples",), node_needs={"cuda": ("mps",)}
    )

    @classmethod
    @contextmanager
    def service(cls, run_id: str, device: str) -> Iterator[None]:
        """Run NVIDIA's MPS daemon for a node's replicas, before they use a GPU and until the last one has ended.

        Local rank 0 starts the daemon, with its own folders on the node's disk. Environment variables lead all replicas
        to it. They are recorded with the run: where CUDA_MPS_PIPE_DIRECTORY is missing, the run had no MPS.
        """
        if device != "cuda":
            yield
            return
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        keeper: subprocess.Popen[bytes] | None = None
        try:
            folder = _folder(run_id)
            keeper = mps_daemon.keep(folder) if first else None
            mps_daemon.wait_for(folder)
            os.environ |= mps_daemon.variables(folder) | mps_daemon.renumbered()
        except (UserError, OSError) as error:
            if first:
                print(f"mps: no MPS: {error}; the replicas run without, and take turns on the device", flush=True)
        try:
            yield
        finally:
            for name in mps_daemon.FOLDERS:
                os.environ.pop(name, None)
            if keeper and keeper.stdin:
                keeper.stdin.close()  # no wait here: the daemon's last client, for which it waits, may be this process


def _folder(run_id: str) -> Path:
    """The daemon's folder. All replicas of the node compute the same name; other starts of a run have other names."""
    name = f"mps-{fingerprint([run_id, *(os.environ.get(name) for name in START)])}"
    disk = Path(os.environ.get("TORCH_RELAY_NODE_DISK") or tempfile.gettempdir())
    folder = own_folder(disk) / name
    return folder if len(str(folder)) <= LONGEST_PATH else own_folder(Path("/tmp")) / name
