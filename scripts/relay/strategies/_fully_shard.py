"""torch's second version of FSDP, wherever the installed torch has it: 2.5 keeps it in another place."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

try:
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

try:
    from torch.distributed._composable.replicate_with_fsdp import replicate
except ImportError:
    replicate = None  # type: ignore[assignment]

REPLICATES = replicate is not None
__all__ = [
    "REPLICATES",
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "replicated",
    "shard",
]


def shard(module: nn.Module, **given: Any) -> None:
    """`fully_shard`, in place. Without `shard_placement_fn`, torch 2.5 shards the first dimension, also unevenly."""
    known = signature(fully_shard).parameters
    fully_shard(module, **{name: value for name, value in given.items() if name in known or name == "mesh"})


def replicated(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let the replicas of a module average its gradients, in place, with any number of backward passes in a step.

    `mesh` has the replicas in its first dimension, and where REPLICATES is false a second dimension of size 1: torch
    before 2.9 has no `replicate` on top of FSDP, and shards over groups of one process do the same.
    """
    if REPLICATES:
        replicate(module, mesh=mesh)
    else:
        fully_shard(module, mesh=mesh)
