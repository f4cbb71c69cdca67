"""What strategies that split the layers have in common: the cut, this process's stages, and the way through them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from relay.base.errors import UserError
from relay.strategies import _cut
from relay.strategies.base import Strategy
from relay.task.network import Network


class Staged(Strategy):
    """A network whose layers are split over processes; a subclass says whose each stage is, and how a step goes.

    `stages` are this process's, by their place in the whole row; `owners` the rank that has each stage of the row;
    `flow` what a micro-batch is as it enters each stage and as it leaves the last one, on the meta device.
    """

    stages: dict[int, _cut.Stage]
    owners: Sequence[int]
    flow: list[torch.Tensor]
    micro_batches: int
    group: dist.ProcessGroup | None = None  # of the processes that hold one replica together; None: of all

    def place(self, owners: Sequence[int], micro_batches: int = 1) -> None:
        """Cut the network for these owners and keep this process's part of it: sets `model` and what is said above."""
        self.owners, self.micro_batches = owners, micro_batches
        network, example = self.task.model(), self.example(micro_batches)
        cuts = self.cut(network, example, len(owners))
        self.flow = _cut.flow(network, cuts, example, self.ranks.device)
        mine = [index for index, owner in enumerate(owners) if owner == self.ranks.rank]
        self.stages = {index: _cut.Stage.of(network, cuts[index]).to(self.ranks.device) for index in mine}
        # Several stages are no row of their own: one list of their layers, for names, modes and parameters.
        layers = OrderedDict(layer for stage in self.stages.values() for layer in stage.named_children())
        self.model = self.stages[mine[0]] if len(mine) == 1 else nn.Sequential(layers)
        if self.scaler:  # its first use makes its scale; on most ranks no loss will
            self.scaler.scale(torch.zeros((), device=self.ranks.device))

    def example(self, micro_batches: int) -> torch.Tensor:
        """A micro-batch's inputs, on the meta device. Reads `replica`. Raises UserError where not all can be equal."""
        samples = self.global_batch_size // self.replica.count
        if samples % micro_batches:
            raise UserError(
                f"micro_batches: {micro_batches} is not allowed with {samples} samples for each replica; "
                f"allowed: what divides {samples}"
            )
        return self.task.example(samples // micro_batches)

    def cut(self, network: Network, example: torch.Tensor, count: int) -> list[list[str]]:
        """Each stage's layers, by what layers cost: rank 0 measures it once for a run; all its jobs cut alike."""
        if "layer_seconds" not in self.measured:
            found = None
            if self.ranks.rank == 0:
                inputs = torch.zeros(example.shape, dtype=example.dtype, device=self.ranks.device)
                found = _cut.layer_seconds(network, inputs)
            self.measured["layer_seconds"] = self.ranks.gather(found)[0]
        return _cut.cut(self.measured["layer_seconds"], count, _cut.trainable(network))

    @property
    def no_loss(self) -> torch.Tensor:
        """What a process returns that has no loss: NaN, lest it be taken for one."""
        return torch.full((), torch.nan, device=self.ranks.device)

    def send(self, tensor: torch.Tensor, stage: int) -> None:
        """Send a contiguous tensor to the owner of a stage."""
        dist.send(tensor.detach(), self.owners[stage], group=self.group)

    def receive(self, like: torch.Tensor, stage: int, count: int) -> torch.Tensor:
        """Receive a tensor like this one, of so many samples, from the owner of a stage."""
        tensor = torch.empty(count, *like.shape[1:], dtype=like.dtype, device=self.ranks.device)
        dist.recv(tensor, self.owners[stage], group=self.group)
        return tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs, where the last stage is; micro-batch by micro-batch through all stages, without gradients.

        Every process sends and receives in the one order of micro-batches and stages, so that none waits for one that
        waits for it, however processes and stages are paired and whether or not sending waits for the receiver.
        """
        return torch.cat([self._walk(part) for part in inputs.chunk(self.micro_batches)])

    def _walk(self, passing: torch.Tensor) -> torch.Tensor:
        """A micro-batch through this process's stages, from and to those of others."""
        count = len(passing)
        for index, stage in self.stages.items():
            if index > 0 and index - 1 not in self.stages:
                passing = self.receive(self.flow[index], index - 1, count)
            passing = stage(passing)
            if index + 1 < len(self.owners) and index + 1 not in self.stages:
                self.send(passing, index + 1)
        return passing
