"""Each rank has some of the experts; tokens travel to theirs and back by all-to-all (document 004 names it).

Lepikhin et al. 2020, "GShard", but without a capacity: no token is dropped, so that slices of a batch change nothing.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from relay.networks.gpt import MoE
from relay.process.ranks import TIMEOUT
from relay.spec.run import Setting
from relay.strategies._tensor_plan import shard_experts
from relay.strategies.base import Replica, Requirements, Strategy


def experts(setting: Setting, group: int, stages: int) -> str | None:
    """Experts that all processes divide evenly."""
    count, processes = setting.task.experts, setting.shape.world_size
    if count and count % processes == 0:
        return None
    return (
        f"{setting.strategy.name} divides experts over {processes} processes, {setting.task.name} has {count or 'none'}"
    )


class ExpertParallel(Strategy):
    """Every rank has a slice of the batch and a share of each layer's experts; the rest is averaged as in DDP."""

    requirements = Requirements(
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        needs=("experts",),
    )

    def build(self) -> None:
        device = self.ranks.device
        self.model = self.task.model()
        self._spread(self.ranks.mesh(self.ranks.world_size))
        self.model.to(device)  # last, so that no device ever holds all experts
        sharded = {name: p for name, p in self.model.named_parameters() if isinstance(p, DTensor)}
        self.experts = list(sharded.values())
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, list(sharded))
        device_ids = [device] if device.type == "cuda" else None
        self.forward = DistributedDataParallel(self.model, device_ids=device_ids)  # type: ignore[method-assign]
        self.make_optimizer()
        self.replica = Replica(self.ranks.rank, self.ranks.world_size)

    def _spread(self, mesh: DeviceMesh) -> None:
        """Leave each rank its experts of every mixture, and let tokens travel to them."""
        group = dist.new_group(timeout=TIMEOUT)  # its own, so that tokens do not queue behind DDP's gradients
        for module in self.model.modules():
            if isinstance(module, MoE):
                shard_experts(module, mesh)
                module.compute = Exchange(module, group)  # type: ignore[method-assign]

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        # An expert has seen the tokens of all ranks: its gradients add up those of the ranks' losses, which are means.
        for parameter in self.experts:
            assert parameter.grad is not None
            parameter.grad /= self.ranks.world_size


class Exchange:
    """Computes a mixture's experts where they are: takes the place of its `compute`. Collective.

    The process waits for its device, because how many tokens travel is only known there.
    """

    def __init__(self, module: MoE, group: dist.ProcessGroup) -> None:
        self.module, self.group, self.ranks = module, group, group.size()

    def __call__(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """(T, width) tokens in the order of experts, (E,) tokens of each, to the experts' (T, width) outputs."""
        asked = torch.empty_like(counts)  # (ranks, own experts) in a row: what each rank wants of each of mine
        dist.all_to_all_single(asked, counts, group=self.group)
        asked = asked.view(self.ranks, -1)
        sent, received = counts.view(self.ranks, -1).sum(1).tolist(), asked.sum(1).tolist()
        arrived = all_to_all_single_autograd(tokens, received, sent, self.group)
        # They come in the order of ranks, and are wanted in that of experts.
        own = torch.arange(asked.shape[1], device=tokens.device).repeat(self.ranks)
        order = own.repeat_interleave(asked.flatten()).argsort(stable=True)
        outputs = self.module.run_experts(arrived[order], asked.sum(0))
        return all_to_all_single_autograd(outputs[order.argsort()], sent, received, self.group)
