"""Matrices are split within groups of neighbouring ranks, and each part is sharded over the groups."""

import warnings

from relay.strategies.base import Replica, Requirements
from relay.strategies.fsdp import shard_units, units_of
from relay.strategies.tensor_parallel import TensorParallel, split


class FSDPTensorParallel(TensorParallel):
    """Tensor parallelism over `tensor` neighbouring ranks, such as those of a node, and FSDP across these groups."""

    requirements = Requirements(
        least_torch="2.8",  # 2.5 has it for GPUs alone
        least_devices=4,
        divides=("samples", "parameters", "gradients", "optimizer"),
        group="tensor",
        needs=("heads", "matrices", "first_derivatives", "unconditional"),
        options={"tensor": 2},
        least={"tensor": 2},
    )

    def build(self, tensor: int) -> None:
        # Outputs of split matrices are views. FSDP warns that in-place operations on them fail; no layer has any.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = self.ranks.mesh(self.ranks.world_size // tensor, tensor, names=("data", "tensor"))
        data, self.tensor = mesh["data"], mesh["tensor"]
        self.model = self.task.model()
        units = units_of(self.task, self.model)
        split(self.task, self.model, self.tensor)
        shard_units(self.model, units, data)
        self.make_optimizer()
        self.replica = Replica(data.get_local_rank(), data.size(), reports=self.tensor.get_local_rank() == 0)
