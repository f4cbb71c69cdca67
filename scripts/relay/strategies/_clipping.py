"""Clipping by the norm over all parameters, of which each process may have whole ones, shards, or a stage's alone."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from relay.base.grouped import grouped


@torch.no_grad()
def clip(
    parameters: Iterable[nn.Parameter],
    most: float,
    device: torch.device,
    over_stages: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Scale the gradients, in place, so that their norm is at most `most`, as `torch.nn.utils.clip_grad_norm_` does.

    `over_stages` adds up a scalar on the `device` over the processes that hold other parameters. Collective.
    """
    # By the groups over which a parameter is sharded, which are the same on all of their ranks, with gradient or not.
    sharded: defaultdict[tuple[ProcessGroup, ...], list[torch.Tensor]] = defaultdict(list)
    for parameter in parameters:
        held = sharded[_groups(parameter)]
        if (gradient := parameter.grad) is not None:
            held.append(local(gradient))
    total = torch.zeros((), dtype=torch.float64, device=device)
    for groups, held in sharded.items():
        norms = (
            [norm.to(device, torch.float64) for norm in torch._foreach_norm(held)] if held else [total.new_zeros(())]
        )
        square = torch.stack(norms).square().sum()
        for group in groups:
            dist.all_reduce(square, group=group)
        total += square
    norm = over_stages(total).sqrt()
    factor = torch.where(norm + 1e-6 > most, most / (norm + 1e-6), 1.0)
    gradients = (each for held in sharded.values() for each in held)
    for place, held in grouped(gradients, lambda each: (each.device, each.dtype)).items():
        torch._foreach_mul_(held, factor.to(*place))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _groups(parameter: nn.Parameter) -> tuple[ProcessGroup, ...]:
    """The groups over whose ranks a parameter is sharded; none where it is whole."""
    if not isinstance(parameter, DTensor):
        return ()
    mesh, placements = parameter.device_mesh, enumerate(parameter.placements)
    return tuple(mesh.get_group(dimension) for dimension, each in placements if not each.is_replicate())
