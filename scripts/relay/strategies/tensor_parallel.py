"""Matrices are split over the ranks, and every rank computes the whole batch (named in document 004; Megatron-LM)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel as sharded_loss
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils._pytree import tree_map_only

from relay.base.errors import UserError
from relay.strategies._clipping import local
from relay.strategies._sharded import WholeNumbers, refuse_hooks
from relay.strategies._tensor_plan import STYLES, plan_of
from relay.strategies.base import Batch, Replica, Requirements, Strategy
from relay.task.bound import BoundTask

# The gate uses the same limit: it fails a strategy that claims to divide parameters that are nearly whole on each rank.
LEAST_SHARE = 0.1


class TensorParallel(Strategy):
    """One replica over all ranks, with torch.distributed.tensor.

    With `loss_parallel`, the outputs stay sharded over the classes, and the loss is computed from these shards: the
    outputs are those of the model's last nn.Linear, and their cross entropy is the loss.
    """

    requirements = Requirements(
        least_devices=2,
        divides=("parameters", "gradients", "optimizer"),
        group="all",
        needs=("heads", "matrices", "first_derivatives"),
        cross_entropy_only={"loss_parallel": (True,)},
        options={"loss_parallel": False},
    )
    loss_parallel = False
    around_loss: type[AbstractContextManager[Any]] = WholeNumbers

    def build(self, loss_parallel: bool) -> None:
        self.loss_parallel = loss_parallel
        if loss_parallel:  # the loss is that of outputs alone, and stays divided
            self.around_loss = nullcontext
        self.tensor = self.ranks.mesh(self.ranks.world_size)
        self.model = self.task.model()
        split(self.task, self.model, self.tensor, classes_sharded=loss_parallel)
        self.model.to(self.ranks.device)  # after the split, so that no device ever holds the whole model
        self.make_optimizer()
        self.replica = Replica(0, 1, reports=self.ranks.rank == 0)

    def train_step(self, batch: Batch) -> torch.Tensor:
        # Within, cross entropy accepts outputs that are sharded over the classes, also when backward.
        with sharded_loss() if self.loss_parallel else nullcontext():
            loss: torch.Tensor = whole(super().train_step(batch))
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        agree(self.model, self.tensor)

    def predict(self, batch: Batch) -> Any:
        return whole(super().predict(batch))


def split(task: BoundTask, model: nn.Module, mesh: DeviceMesh, *, classes_sharded: bool = False) -> None:
    """Split the task's model over the mesh, in place.

    With `classes_sharded`, the outputs stay DTensors, sharded over the classes. Raises UserError where less than
    LEAST_SHARE of the parameters can be split, and for what `plan_of` refuses; RuntimeError as `refuse_hooks` does.
    """
    refuse_hooks(model)
    arguments, keywords = task.arguments(task.example(2))
    own = task.tensor_plan(model)
    plan = plan_of(model, arguments, keywords, mesh.size(), own=own, classes_sharded=classes_sharded)
    if plan.share < LEAST_SHARE:
        raise UserError(
            f"tensor parallelism: only {plan.share:.1%} of the parameters of {type(model).__name__} are in matrices "
            f"that can be split; at least {LEAST_SHARE:.0%} is needed; train it with ddp or fsdp"
        )
    parallelize_module(model, mesh, {name: STYLES[style]() for name, style in plan.styles.items()})


def agree(model: nn.Module, mesh: DeviceMesh) -> None:
    """Average the gradients of the parameters that are whole on every rank of the tensor-parallel mesh. Collective.

    In exact arithmetic they would be equal. GPU kernels add in varying order, so that they differ by rounding. Without
    the average, convolutions and norms would drift apart between ranks.
    """
    gradients = [local(p.grad) for p in model.parameters() if p.grad is not None and not _is_split(p, mesh)]
    if not gradients:
        return
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together, group=mesh.get_group())
    together /= mesh.size()
    for gradient, mean in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def _is_split(parameter: torch.Tensor, mesh: DeviceMesh) -> bool:
    """Whether the ranks of the tensor-parallel mesh hold different parts of it. FSDP's sharding does not count."""
    if not isinstance(parameter, DTensor):
        return False
    return parameter.device_mesh == mesh or parameter.device_mesh.ndim > 1


def whole(tensors: Any) -> Any:
    """A tensor, or tensors in any structure, complete in memory, so that code outside of torch may read them."""
    # An exchange may still be writing the tensor. `clone` waits for it.
    complete = lambda tensor: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()  # noqa: E731
    return tree_map_only(torch.Tensor, complete, tensors)
