"""Splits a network over the ranks of a tensor-parallel group, by a plan that is derived from the network.

Of two consecutive matrices, the first is split by columns and the second by rows. The pair then needs only one
exchange (Shoeybi et al. 2019, "Megatron-LM", section 3). Convolutions and norms stay whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from relay.base.errors import UserError
from relay.networks.gpt import MoE
from relay.task.network import Network

# Layers that may stand between the two matrices of a pair, because they treat each feature separately. Dropout may not:
# ranks that draw the same random numbers would drop the same features of their shards.
ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)
# The gate uses the same limit: it fails a strategy that claims to divide parameters that are nearly whole on each rank.
LEAST_SHARE = 0.1


class SplitExperts(ParallelStyle):
    """A mixture of experts, split by experts. Each rank computes the tokens of its experts; the outputs are added."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, MoE)
        shard_experts(module, device_mesh)
        module.compute = partial(self._compute, module, device_mesh)  # type: ignore[method-assign]
        return module

    @staticmethod
    def _compute(module: MoE, mesh: DeviceMesh, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The experts' outputs (T, width) for tokens (T, width) sorted by expert; `counts` (E,) are tokens of each."""
        counts_of_ranks, rank = counts.view(mesh.size(), -1), mesh.get_local_rank()
        tokens_of_ranks = counts_of_ranks.sum(1).tolist()
        before, mine, after = sum(tokens_of_ranks[:rank]), tokens_of_ranks[rank], sum(tokens_of_ranks[rank + 1 :])
        # The gradient of the tokens is the sum over all ranks, each with the gradient from its own experts.
        local = DTensor.from_local(tokens, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        outputs = module.run_experts(local[before : before + mine], counts_of_ranks[rank])
        summand = DTensor.from_local(F.pad(outputs, (0, 0, before, after)), mesh, [Partial()])
        return summand.redistribute(placements=[Replicate()]).to_local()


def shard_experts(module: MoE, mesh: DeviceMesh) -> None:
    """Keep only this rank's share of the stacked experts. The router stays whole."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        shard = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
        module.register_parameter(name, nn.Parameter(shard))


STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "column": ColwiseParallel,
    "row": RowwiseParallel,
    "embedding": lambda: ColwiseParallel(output_layouts=Replicate()),
    "experts": SplitExperts,
}


def split(network: Network, mesh: DeviceMesh, *, classes_sharded: bool = False) -> None:
    """Split the network over the mesh, in place.

    With `classes_sharded`, the outputs stay DTensors, sharded over the classes. Raises UserError where less than
    LEAST_SHARE of the parameters can be split.
    """
    plan = tensor_plan(network, mesh.size(), classes_sharded=classes_sharded)
    parallelize_module(network, mesh, dict(plan))
    parameters = list(network.parameters())
    whole = sum(p.nbytes for p in parameters)
    sharded = sum(p.nbytes for p in parameters if isinstance(p, DTensor))
    if sharded < LEAST_SHARE * whole:
        raise UserError(
            f"tensor parallelism: only {sharded / whole:.1%} of the network's parameters are in matrices that can be "
            f"split; at least {LEAST_SHARE:.0%} is needed; train it with ddp or fsdp"
        )


def agree(network: nn.Module, mesh: DeviceMesh) -> None:
    """Average the gradients of the parameters that are whole on every rank of the tensor-parallel mesh. Collective.

    In exact arithmetic they would be equal. GPU kernels add in varying order, so that they differ by rounding. Without
    the average, convolutions and norms would drift apart between ranks.
    """
    gradients = [_local(p.grad) for p in network.parameters() if p.grad is not None and not _is_split(p, mesh)]
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


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor, complete in memory, so that code outside of torch may read it."""
    # An exchange may still be writing the tensor. `clone` waits for it.
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def tensor_plan(network: Network, ranks: int, *, classes_sharded: bool = False) -> dict[str, ParallelStyle]:
    """The style of every module that is split over `ranks` ranks, by the module's name.

    A layer may define its own plan: `tensor_plan` has a style for each child. Raises UserError where the ranks do not
    divide the heads or experts of such a plan, and where `classes_sharded` is set but the last layer is no matrix.
    """
    layers = dict(network.named_children())
    plan = {f"{name}.{child}": style for name, layer in layers.items() for child, style in _stated(layer, ranks)}
    matrices = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}
    if classes_sharded:
        head = next(reversed(layers))
        if head not in matrices:
            raise UserError(f"loss_parallel: True is not allowed; the network's last layer, {head}, is no matrix")
        del matrices[head]
        plan[head] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    names = list(matrices)
    while names:
        name = names.pop(0)
        if names and _is_pair(layers, name, names[0]) and matrices[name].out_features % ranks == 0:
            plan |= {name: ColwiseParallel(), names.pop(0): RowwiseParallel()}
        else:
            plan[name] = _alone(matrices[name])
    return plan


def _stated(layer: nn.Module, ranks: int) -> Iterator[tuple[str, ParallelStyle]]:
    """The plans that modules within a layer define: each child's name within the layer, and its style."""
    for place, module in layer.named_modules():
        for name, style in getattr(module, "tensor_plan", {}).items():
            if hasattr(module, name):
                _check_divides(module, name, style, ranks)
                yield f"{place}.{name}" if place else name, STYLES[style]()


def _check_divides(module: nn.Module, name: str, style: str, ranks: int) -> None:
    """Raise UserError where the ranks would get unequal numbers of experts or attention heads."""
    child = getattr(module, name)
    if style == "experts":
        count, what = child.experts, "experts"
    elif style == "column":
        count, what = child.out_features // getattr(module, "head_width", 1), "attention heads"
    else:  # rows follow the columns of another matrix; an embedding's outputs are gathered at once
        return
    if count % ranks:
        raise UserError(f"tensor parallelism: {ranks} processes do not divide {count} {what} ({name})")


def _is_pair(layers: dict[str, nn.Module], name: str, following: str) -> bool:
    """Whether two matrices form a pair: the outputs of the first can stay split until the second multiplies them."""
    order = list(layers)
    between = order[order.index(name) + 1 : order.index(following)]
    return all(isinstance(layers[other], ELEMENTWISE) for other in between)


def _alone(matrix: nn.Linear) -> ParallelStyle:
    """The style of a matrix without a pair: split along its larger dimension, with whole inputs and outputs."""
    if matrix.out_features >= matrix.in_features:
        return ColwiseParallel(output_layouts=Replicate())
    return RowwiseParallel(input_layouts=Replicate())
