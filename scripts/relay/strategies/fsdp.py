"""Parameters, gradients and optimiser state are sharded over the ranks. Each unit is gathered when it is needed.

Zhao et al. 2023, "PyTorch FSDP"; this is the second version, `fully_shard`.
"""

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from relay.process.devices import is_gpu
from relay.strategies._sharded import WholeNumbers, kept_whole, sum_and_divide
from relay.strategies.base import Batch, Requirements, Strategy
from relay.task.bound import BoundTask
from relay.task.calls import Readings


class FSDP(Strategy):
    """Fully sharded data parallelism over gloo on CPUs and NCCL on GPUs.

    `reshard_after_forward` frees gathered units after the forward pass and gathers them again for the backward pass.
    `mixed_precision` gathers and computes units in bf16 or fp16, instead of autocast, and reduces gradients in
    float32. `offload` keeps the shards in main memory and updates them there. `replicas` is the number of groups of
    ranks that each hold the whole model (hybrid sharding). With one group for each node, gathering stays within nodes.
    """

    requirements = Requirements(
        least_torch="2.8",  # 2.5 has it for GPUs alone
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        options={"reshard_after_forward": True, "mixed_precision": False, "offload": False, "replicas": 1},
        low_precision_only={"mixed_precision": (True,)},
        divisors=("replicas",),
        needs=("first_derivatives", "unconditional"),
    )
    around_loss = WholeNumbers

    def build(self, reshard_after_forward: bool, mixed_precision: bool, offload: bool, replicas: int) -> None:
        self.reshard_after_forward = reshard_after_forward
        self.model = self.task.model()  # on the CPU, because fully_shard moves one unit after the other to the device
        on_gpu, low = is_gpu(self.ranks.device), self.task.autocast if mixed_precision else None
        shard_units(
            self.model,
            units_of(self.task, self.model),
            self._mesh(replicas),
            reshard_after_forward=reshard_after_forward,
            mp_policy=MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None),
            offload_policy=CPUOffloadPolicy(pin_memory=on_gpu) if offload else OffloadPolicy(),
        )
        if mixed_precision:  # the shards' policy takes the place of autocast
            self.task = copy(self.task)
            self.task.autocast = None
        self.make_optimizer()

    def _mesh(self, replicas: int) -> DeviceMesh:
        """A mesh of all ranks, or one of shape (replicas, shards) in which neighbouring ranks form a replica."""
        ranks = self.ranks.world_size
        if replicas == 1:
            return self.ranks.mesh(ranks)
        return self.ranks.mesh(replicas, ranks // replicas, names=("replicate", "shard"))

    def predict(self, batch: Batch) -> Any:
        outputs = super().predict(batch)
        if not self.reshard_after_forward:  # units would stay gathered, because no backward pass frees them
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return outputs


def units_of(task: BoundTask, model: nn.Module) -> list[nn.Module]:
    """The units of the task's model, by what it reads in a forward pass, before it is split or sharded."""
    arguments, keywords = task.arguments(task.example(2))
    return [unit for _, unit in task.blocks(model, Readings.of(model, arguments, keywords))]


def shard_units(model: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh, **policies: Any) -> None:
    """Shard each of the model's units separately, then the rest of the model, in place.

    The shards are along the last dimension of the mesh. `policies` are keywords of `fully_shard`.
    """
    whole = kept_whole(model, mesh)
    place = partial(_placement, shards=mesh.size(mesh.ndim - 1))
    for unit in (*units, model):
        sharded = fully_shard(unit, mesh=mesh, shard_placement_fn=place, ignored_params=whole, **policies)
        sum_and_divide(sharded, mesh)


def _placement(parameter: nn.Parameter, shards: int) -> Shard | None:
    """Shard the first dimension that splits evenly. Four stacked experts, say, do not split over eight ranks."""
    if isinstance(parameter, DTensor):  # tensor parallelism has split it already, so that torch has to choose
        return None
    return next((Shard(dim) for dim, size in enumerate(parameter.shape) if size % shards == 0), None)
