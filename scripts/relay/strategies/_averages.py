"""FSDP's averages over backends that have none: MPI, and gloo on older versions of torch."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from relay.spec.versions import release

DIVIDES = release(torch.__version__) >= (2, 13)


def sum_and_divide(module: FSDPModule, mesh: DeviceMesh) -> None:
    """Let a module's gradients be summed by the backend and divided by FSDP, where the backend has no averages.

    FSDP asks for an average in float32 and bfloat16. MPI has none. torch 2.8's gloo sums, without a word: gradients are
    too large by the number of processes. torch 2.13's was seen to divide.
    """
    backend = mesh.get_group(0)._get_backend(torch.device(mesh.device_type)).name()
    if backend == "mpi" or (backend == "gloo" and not DIVIDES):
        module.set_force_sum_reduction_for_comms(True)
