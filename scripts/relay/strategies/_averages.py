"""FSDP's averages over gloo on older versions of torch."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from relay.spec.versions import release

DIVIDES = release(torch.__version__) >= (2, 13)


def sum_and_divide(module: FSDPModule, mesh: DeviceMesh) -> None:
    """Let a module's gradients be summed by gloo and divided by FSDP.

    torch 2.8 asks gloo for an average in float32 and bfloat16. gloo sums, without a word: gradients are too large by
    the number of processes. torch 2.13 was seen to divide.
    """
    if mesh.device_type == "cpu" and not DIVIDES:
        module.set_force_sum_reduction_for_comms(True)
