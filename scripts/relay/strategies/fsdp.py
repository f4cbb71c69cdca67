"""Parameters, gradients and optimizer state are sharded over the ranks; each layer is gathered when it is needed.

Zhao et al. 2023, "PyTorch FSDP"; this is its second form, `fully_shard`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from relay.strategies.base import Replica, Requirements, Strategy
from relay.task.network import Network


class FSDP(Strategy):
    """Fully sharded data parallelism over gloo on CPUs and NCCL on GPUs.

    `reshard_after_forward`: gathered layers are let go after their forward pass, and gathered again for the backward
    pass. `mixed_precision`: layers are gathered and computed in bf16 or fp16, in place of autocast; gradients are
    reduced in float32. `offload`: shards live in the CPUs' memory, and are updated there. `replicas`: so many groups of
    ranks each hold a whole (hybrid sharding): one for each node keeps the gathering within nodes.
    """

    requirements = Requirements(
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        options={"reshard_after_forward": True, "mixed_precision": False, "offload": False, "replicas": 1},
        low_precision_only={"mixed_precision": (True,)},
        divisors=("replicas",),
    )

    def build(self, reshard_after_forward: bool, mixed_precision: bool, offload: bool, replicas: int) -> None:
        self.reshard_after_forward = reshard_after_forward
        model = self.task.model()  # on the CPU: fully_shard moves one layer after the other
        on_gpu = self.ranks.device.type == "cuda"
        shard_layers(
            model,
            self._mesh(replicas),
            reshard_after_forward=reshard_after_forward,
            mp_policy=in_few_bits(model) if mixed_precision else MixedPrecisionPolicy(),
            offload_policy=CPUOffloadPolicy(pin_memory=on_gpu) if offload else OffloadPolicy(),
        )
        self.model = model
        self.make_optimizer()
        self.replica = Replica(self.ranks.rank, self.ranks.world_size)

    def _mesh(self, replicas: int) -> DeviceMesh:
        """All ranks, or (replicas, shards), neighbouring ranks sharing a whole."""
        ranks = self.ranks.world_size
        if replicas == 1:
            return self.ranks.mesh(ranks)
        return self.ranks.mesh(replicas, ranks // replicas, names=("replicate", "shard"))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = super().predict(inputs)
        if not self.reshard_after_forward:  # otherwise layers would stay whole, with no backward pass to end that
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return outputs


def in_few_bits(network: Network) -> MixedPrecisionPolicy:
    """The network's autocast, turned into a policy of its shards; none in other precisions (the gate's float64)."""
    dtype = network.computation.autocast
    network.computation = replace(network.computation, autocast=None)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)


def shard_layers(network: Network, mesh: DeviceMesh, **policies: Any) -> None:
    """Shard each layer with parameters as a unit of its own, and then the whole, in place.

    The last dimension of the mesh is that of the shards. `policies` are those of `fully_shard`.
    """
    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()  # channels_last is refused; inputs alone may have it
    layers = [layer for layer in network.children() if any(True for _ in layer.parameters())]
    place = partial(_placement, shards=mesh.size(mesh.ndim - 1))
    for unit in (*layers, network):
        fully_shard(unit, mesh=mesh, shard_placement_fn=place, **policies)


def _placement(parameter: nn.Parameter, shards: int) -> Shard | None:
    """The first dimension that splits evenly: of four stacked experts, eight ranks could not each have a part."""
    if isinstance(parameter, DTensor):  # already split by tensor parallelism: torch knows best
        return None
    return next((Shard(dim) for dim, size in enumerate(parameter.shape) if size % shards == 0), None)
