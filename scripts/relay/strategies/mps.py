"""Several replicas on one device (document 000): a small model at a small batch leaves most of a GPU idle.

NCCL refuses processes that share a GPU, so that gradients are averaged with gloo, or with MPI where torch has it.
NVIDIA's Multi-Process Service (MPS) lets the replicas compute at the same time; without it, they take turns. On CPUs,
the replicas share the cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.base.errors import UserError
from relay.environments.node_folder import own_folder
from relay.spec.identity import fingerprint
from relay.strategies.base import Requirements
from relay.strategies.ddp import DDP

CONTROL = "nvidia-cuda-mps-control"
FOLDERS = {"CUDA_MPS_PIPE_DIRECTORY": "pipe", "CUDA_MPS_LOG_DIRECTORY": "log"}
# Together, the values of these variables identify one start of a run's processes on a node.
START = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT")
LONGEST_WAIT_SECONDS = 30.0
LONGEST_PATH = 80  # of the folder with the daemon's sockets; Linux allows 107 characters for a socket's path
# A shell script that keeps the daemon: $0 is the control program, $1 the daemon's folder. It ends the daemon when its
# standard input is closed, which happens however the process that started it ends. It ignores signals to the whole job,
# because the replicas may still have to save.
KEEPER = """
trap '' TERM INT HUP USR2
exec 3<&0
"$0" -f > "$1/out" 2>&1 < /dev/null 3<&- &
daemon=$!
(
  cat <&3 > /dev/null
  echo quit | "$0" > /dev/null 2>&1
  for second in 1 2 3 4 5; do kill -0 $daemon 2> /dev/null || exit; sleep 1; done
  kill -KILL $daemon
) &
wait $daemon
echo "the daemon has ended: $(tail -n 1 "$1/out")" > "$1/off"
wait
rm -rf "$1"
"""


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
            keeper = _keep_daemon(folder) if first else None
            _wait_for_daemon(folder)
            os.environ |= _variables(folder) | _renumbered()
        except (UserError, OSError) as error:
            if first:
                print(f"mps: no MPS: {error}; the replicas run without, and take turns on the device", flush=True)
        try:
            yield
        finally:
            for name in FOLDERS:
                os.environ.pop(name, None)
            if keeper and keeper.stdin:
                keeper.stdin.close()  # no wait here: the daemon's last client, for which it waits, may be this process


def _folder(run_id: str) -> Path:
    """The daemon's folder. All replicas of the node compute the same name; other starts of a run have other names."""
    name = f"mps-{fingerprint([run_id, *(os.environ.get(name) for name in START)])}"
    disk = Path(os.environ.get("TORCH_RELAY_NODE_DISK") or tempfile.gettempdir())
    folder = own_folder(disk) / name
    return folder if len(str(folder)) <= LONGEST_PATH else own_folder(Path("/tmp")) / name


def _variables(folder: Path) -> dict[str, str]:
    return {variable: str(folder / name) for variable, name in FOLDERS.items()}


def _renumbered() -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for the daemon's clients: the daemon numbers its visible devices from 0 on.

    https://docs.nvidia.com/deploy/mps/, section "Environment Variables".
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(visible.split(",")))))} if visible else {}


def _keep_daemon(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the shell that keeps the daemon. If there is no daemon to start, leave the reason in the file `off`."""
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted start may have left it
    for name in FOLDERS.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    program = shutil.which(CONTROL)
    if program is None:
        (folder / "off").write_text(f"{CONTROL} is not on the PATH")
        return None
    words = ["sh", "-c", KEEPER, program, str(folder)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, env=os.environ | _variables(folder))


def _wait_for_daemon(folder: Path) -> None:
    """Wait until the daemon answers. Raises UserError with the reason in `off`, and TimeoutError, an OSError."""
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while time.monotonic() < deadline:
        if (folder / "off").exists() and (reason := (folder / "off").read_text().strip()):
            raise UserError(reason)
        if (folder / "pipe").is_dir() and _answers(folder):
            return
        time.sleep(0.1)
    raise TimeoutError(f"the daemon has not answered in {LONGEST_WAIT_SECONDS:g} seconds")


def _answers(folder: Path) -> bool:
    command, environment = [CONTROL], os.environ | _variables(folder)
    request = b"get_server_list\n"
    try:
        answer = subprocess.run(command, input=request, env=environment, capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0
