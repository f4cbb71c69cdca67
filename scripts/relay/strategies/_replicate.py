"""Replicas of a module that average its gradients, with any number of backward passes in a step."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from relay.strategies._averages import kept_whole, sum_and_divide, weights_stay

try:
    from torch.distributed._composable.replicate_with_fsdp import replicate
except ImportError:
    replicate = None  # type: ignore[assignment]

REPLICATES = replicate is not None


def replicated(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let the replicas of a module average its gradients, in place.

    `mesh` has the replicas in its first dimension, and where REPLICATES is false a second dimension of size 1: older
    versions of torch have no `replicate` on top of FSDP, and shards over groups of one process do the same.
    """
    weights_stay(module)
    whole = kept_whole(module, mesh)
    ignored: dict[str, Any] = {"ignored_params": whole} if whole else {}  # some versions' `replicate` has it not
    sum_and_divide((replicate if REPLICATES else fully_shard)(module, mesh=mesh, **ignored), mesh)
