"""Several ranks on the machine's one GPU, which the self-test alone allows: it shows what works there, not how fast.

From NCCL 2.30 on a variable lets ranks share a GPU. MPS lets them compute at the same time; without it they take turns.
"""

import json
import os
from contextlib import AbstractContextManager, nullcontext

from relay.base.environment import variable
from relay.process import mps_daemon
from relay.spec.setting import Shape

RANKS = 4  # at most, on the GPU
SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"
# The self-test's driver sets it for its jobs: the variables of processes that share the GPU, as JSON.
VARIABLES = "TORCH_RELAY_ONE_GPU"
NO_DAEMON = "/nonexistent"  # where CUDA finds no daemon, it goes on without


def can_share(shape: Shape) -> bool:
    """Whether processes of this shape can share a GPU that each would have alone."""
    return (shape.device, shape.backend, shape.processes_per_device) == ("cuda", "nccl", 1) and shape.world_size > 1


def variables(shape: Shape) -> dict[str, str]:
    """The environment variables with which processes of this shape share the GPU; none where they do not."""
    return json.loads(os.environ[VARIABLES]) if VARIABLES in os.environ and can_share(shape) else {}


def without_mps() -> AbstractContextManager[object]:
    """Let the processes that are started take turns: of MPS's clients, one that is killed may end the others."""
    if VARIABLES not in os.environ:
        return nullcontext()
    alone = json.loads(os.environ[VARIABLES]) | dict.fromkeys(mps_daemon.FOLDERS, NO_DAEMON)
    return variable(VARIABLES, json.dumps(alone))
