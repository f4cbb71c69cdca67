"""How a network is split over the ranks of a tensor-parallel group, by a plan derived from the network itself.

A matrix by its columns, the next by its rows, and one exchange for both (Shoeybi et al. 2019, "Megatron-LM",
section 3). Convolutions and norms stay whole on every rank.
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

# What may stand within a pair: each feature on its own. No dropout: ranks that draw alike would drop alike features.
ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)
# As in the gate, which fails a strategy that claims to divide what is nearly whole on every rank.
LEAST_SHARE = 0.1


class SplitExperts(ParallelStyle):
    """A mixture of experts: a rank has some of the experts, sees all tokens, and adds its experts' outputs."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, MoE)
        shard_experts(module, device_mesh)
        module.compute = partial(self._compute, module, device_mesh)  # type: ignore[method-assign]
        return module

    @staticmethod
    def _compute(module: MoE, mesh: DeviceMesh, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """(T, width) tokens in the order of experts, (E,) tokens of each, to the experts' (T, width) outputs."""
        counts_of_ranks, rank = counts.view(mesh.size(), -1), mesh.get_local_rank()
        tokens_of_ranks = counts_of_ranks.sum(1).tolist()
        before, mine, after = sum(tokens_of_ranks[:rank]), tokens_of_ranks[rank], sum(tokens_of_ranks[rank + 1 :])
        # The gradient of the tokens is the sum of what the ranks' experts say.
        seen = DTensor.from_local(tokens, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        outputs = module.run_experts(seen[before : before + mine], counts_of_ranks[rank])
        summand = DTensor.from_local(F.pad(outputs, (0, 0, before, after)), mesh, [Partial()])
        return summand.redistribute(placements=[Replicate()]).to_local()


def shard_experts(module: MoE, mesh: DeviceMesh) -> None:
    """Leave each rank of the mesh its share of the stacked experts; the router stays whole."""
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

    `classes_sharded`: its outputs stay DTensors, sharded over the classes. Raises UserError where nothing of note can
    be split.
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
    """Average the gradients of what is whole on every rank of the tensor-parallel mesh. Collective.

    They are the same sums, and yet not the same bits where a GPU's kernels add in any order: without this, convolutions
    and norms would drift apart, and shards be multiplied with different activations.
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
    """Whether the mesh's ranks hold different parts of it; FSDP's shards are over another dimension."""
    if not isinstance(parameter, DTensor):
        return False
    return parameter.device_mesh == mesh or parameter.device_mesh.ndim > 1


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with all its shards, whose last exchange may still be under way, for use outside of torch."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()  # what copies has to wait


def tensor_plan(network: Network, ranks: int, *, classes_sharded: bool = False) -> dict[str, ParallelStyle]:
    """The style of every module that is split over so many ranks, by its name.

    Layers may state a plan of their own (`tensor_plan`: a style for each child). Raises UserError where the ranks do
    not divide what such a plan splits, or where the last layer, whose classes should be sharded, is no matrix.
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
    """What modules within a layer state of their children: the child's name within the layer, and its style."""
    for place, module in layer.named_modules():
        for name, style in getattr(module, "tensor_plan", {}).items():
            if hasattr(module, name):
                _check_divides(module, name, style, ranks)
                yield f"{place}.{name}" if place else name, STYLES[style]()


def _check_divides(module: nn.Module, name: str, style: str, ranks: int) -> None:
    """Raises UserError where the ranks would get unequal parts of what only equal parts of can be understood."""
    child = getattr(module, name)
    if style == "experts":
        count, what = child.experts, "experts"
    elif style == "column":
        count, what = child.out_features // getattr(module, "head_width", 1), "attention heads"
    else:  # the rows belong to some columns; an embedding is put together again at once
        return
    if count % ranks:
        raise UserError(f"tensor parallelism: {ranks} processes do not divide {count} {what} ({name})")


def _is_pair(layers: dict[str, nn.Module], name: str, following: str) -> bool:
    """Whether the columns of one matrix can stay on their ranks as what the rows of the next are multiplied with."""
    order = list(layers)
    between = order[order.index(name) + 1 : order.index(following)]
    return all(isinstance(layers[other], ELEMENTWISE) for other in between)


def _alone(matrix: nn.Linear) -> ParallelStyle:
    """A matrix without a partner: split along its larger dimension, whole inputs and outputs everywhere."""
    if matrix.out_features >= matrix.in_features:
        return ColwiseParallel(output_layouts=Replicate())
    return RowwiseParallel(input_layouts=Replicate())
