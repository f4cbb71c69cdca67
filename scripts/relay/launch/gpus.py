"""The GPUs of this machine that a run may use, as NVIDIA's driver counts them; whether the self-test's ranks may share
the only one, and by which NCCL. Imports no torch."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relay.base.errors import UserError
from relay.environments.node_folder import own_folder
from relay.process import mps_daemon
from relay.process.gpus import visible
from relay.process.one_gpu import RANKS, SHARED, VARIABLES

NCCL = "TORCH_RELAY_NCCL"  # the user's: a folder with another NCCL than torch's own
LEAST, WHEEL = (2, 30), "2.30.7"
LIBRARY = "libnccl.so.2"
# Two blocks for each rank's collectives leave the others theirs. NVLink's multicast needs a GPU for each rank.
SHARING = {SHARED: "1", "NCCL_MAX_CTAS": "2", "NCCL_NVLS_ENABLE": "0"}
# Of a process of its own: only there the library can be preloaded, and the planner imports no torch.
_NCCL_ASKED = """
import json, torch
from relay.process.gpus import nccl_version
print(json.dumps([nccl_version(), torch.version.cuda]))
"""
_daemon: list[subprocess.Popen[bytes]] = []  # lives as long as this process: it ends when its input is closed


@dataclass(frozen=True)
class Sharing:
    """How many ranks may share a GPU; where it is one, why not more, in words for what is skipped."""

    ranks: int = 1
    why_not: str = ""


ALONE = Sharing()


def count_gpus() -> int:
    """The number of NVIDIA GPUs that CUDA shows to this process and to those that it starts."""
    return len(visible().kinds)


def of_this_machine(gpus: Callable[[], int]) -> Sharing:
    """Whether ranks share the only GPU. What they then need is in the environment, for the jobs.

    Raises UserError where the folder that TORCH_RELAY_NCCL names has no NCCL.
    """
    os.environ.pop(VARIABLES, None)
    if gpus() != 1:
        return ALONE
    preload = {"LD_PRELOAD": ":".join(filter(None, [_library(), os.environ.get("LD_PRELOAD")]))}
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
    environment = os.environ | preload | {"PYTHONPATH": path}
    answer = subprocess.run(
        [sys.executable, "-P", "-c", _NCCL_ASKED], env=environment, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["without a word"])[-1]
        return Sharing(why_not=f"torch could not be asked for its NCCL: {last}")
    nccl, cuda = json.loads(answer.stdout.splitlines()[-1])
    if nccl is None or cuda is None:
        return Sharing(why_not="this torch has no NCCL")
    if tuple(nccl) < LEAST:
        wheel = f"nvidia-nccl-cu{cuda.split('.')[0]}=={WHEEL}"
        return Sharing(
            why_not=f"ranks share a GPU from NCCL {'.'.join(map(str, LEAST))} on, and torch has "
            f"{'.'.join(map(str, nccl))}: `pip install --no-deps --target FOLDER {wheel}`, then set {NCCL}=FOLDER"
        )
    os.environ[VARIABLES] = json.dumps(SHARING | {name: value for name, value in preload.items() if value})
    return Sharing(RANKS)


def _library() -> str:
    """The NCCL of the folder that the user names; '' where none is named. Raises UserError where it has none."""
    folder = os.environ.get(NCCL)
    if not folder:
        return ""
    library = next(Path(folder).expanduser().resolve().rglob(LIBRARY), None)
    if library is None:
        raise UserError(f"{NCCL}: {folder!r} has no {LIBRARY}; allowed: a folder with an unpacked nvidia-nccl wheel")
    return str(library)


def begin_mps() -> None:
    """Lead the ranks that share the GPU to the MPS daemon that is there, or to one that lives as long as this process.

    Without any they take turns, which is said.
    """
    if VARIABLES not in os.environ or _daemon or mps_daemon.answers(os.environ):
        return
    try:
        folder = own_folder(Path(tempfile.gettempdir())) / f"mps-{os.getpid()}"
        _daemon.extend(filter(None, [mps_daemon.keep(folder)]))
        mps_daemon.wait_for(folder)
        variables = mps_daemon.variables(folder) | mps_daemon.renumbered()
        os.environ[VARIABLES] = json.dumps(json.loads(os.environ[VARIABLES]) | variables)
    except (UserError, OSError) as error:
        print(f"note: no MPS: {error}; the ranks on the GPU take turns", file=sys.stderr, flush=True)
