"""Each rank has some of the experts. Tokens are sent to their experts and back by all-to-all (named in document 004).

As in Lepikhin et al. 2020, "GShard", but experts have no capacity. No token is dropped, so that the result does not
depend on how a batch is sliced.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from relay.base.errors import UserError
from relay.process.ranks import TIMEOUT
from relay.spec.run import Setting
from relay.strategies._experts import mixtures, shard_own
from relay.strategies.base import Requirements, Strategy


def experts(setting: Setting, group: int, stages: int) -> str | None:
    """The number of experts must be divisible by the number of processes."""
    card, processes = setting.task.card, setting.shape.world_size
    count = card.experts
    if card.parameters is None or (count and count % processes == 0):  # what nobody has looked at is not refused
        return None
    return (
        f"{setting.strategy.name} divides experts over {processes} processes, {setting.task.name} has {count or 'none'}"
    )


class ExpertParallel(Strategy):
    """Every rank has a slice of the batch and a share of each layer's experts. Other parameters are as in DDP."""

    requirements = Requirements(
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        needs=("experts",),
    )

    def build(self) -> None:
        self.model = self.task.model()
        self._spread(self.ranks.mesh(self.ranks.world_size))
        self.model.to(self.ranks.device)  # after sharding, so that no device ever holds all experts
        sharded = {name: p for name, p in self.model.named_parameters() if isinstance(p, DTensor)}
        self.experts = [parameter for parameter in sharded.values() if parameter.requires_grad]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, list(sharded))
        self.module = DistributedDataParallel(self.model)
        self.make_optimizer()

    def _spread(self, mesh: DeviceMesh) -> None:
        """Keep this rank's experts of every mixture, and make tokens travel to their experts."""
        group = dist.new_group(timeout=TIMEOUT)  # a separate group, so that tokens do not queue behind DDP's gradients
        layers = [mixture for _, mixture in mixtures(self.model)]
        if not layers:
            raise UserError(
                f"expert_parallel: {type(self.model).__name__} has no mixture of experts; train it with ddp"
            )
        for mixture in layers:
            shard_own(mixture, mesh)
            mixture.compute = Exchange(mixture, group)

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        # An expert's gradients are sums over the losses of all ranks. The step needs their mean.
        for parameter in self.experts:
            assert parameter.grad is not None
            parameter.grad /= self.ranks.world_size


class Exchange:
    """Computes a mixture's experts on the ranks that have them; it replaces the mixture's `compute`. Collective.

    The process has to wait for its device, because only the device knows how many tokens are sent.
    """

    def __init__(self, module: Any, group: dist.ProcessGroup) -> None:
        self.module, self.group, self.ranks = module, group, group.size()

    def __call__(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The experts' outputs (T, width) for tokens (T, width) sorted by expert; `counts` (E,) are tokens of each."""
        counts_in = torch.empty_like(counts)
        dist.all_to_all_single(counts_in, counts, group=self.group)
        counts_in = counts_in.view(self.ranks, -1)  # (ranks, own experts): tokens from each rank for each expert
        sent, received = counts.view(self.ranks, -1).sum(1).tolist(), counts_in.sum(1).tolist()
        arrived = all_to_all_single_autograd(tokens, received, sent, self.group)
        # Tokens arrive sorted by rank; the experts need them sorted by expert.
        own = torch.arange(counts_in.shape[1], device=tokens.device).repeat(self.ranks)
        order = own.repeat_interleave(counts_in.flatten()).argsort(stable=True)
        outputs = self.module.run_experts(arrived[order], counts_in.sum(0))
        return all_to_all_single_autograd(outputs[order.argsort()], sent, received, self.group)
