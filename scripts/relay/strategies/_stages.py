"""The base class of strategies that split the layers: the cut, this process's stages, and the pass through them."""

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
    """A network whose layers are split over processes. A subclass decides which rank owns which stage, and does a step.

    `cut_before`, an option of these strategies, names the first layer of each stage but the first one, in the network's
    order. Where it names none, the network is cut by what its layers cost.
    `stages` are this process's stages, by index. `owners` has the rank of each stage. `flow` has a micro-batch's shape
    and type at the entry of each stage and at the exit of the last one, as tensors on the meta device.
    """

    stages: dict[int, _cut.Stage]
    owners: Sequence[int]
    flow: list[torch.Tensor]
    micro_batches: int
    cut_before = ""
    group: dist.ProcessGroup | None = None  # the processes that hold one replica together; None for all processes

    def place(self, owners: Sequence[int], micro_batches: int = 1) -> None:
        """Cut the network into one stage for each owner and keep this process's stages. Sets all members above."""
        self.owners, self.micro_batches = owners, micro_batches
        network, example = self.task.model(), self.example(micro_batches)
        cuts = self.cut(network, example, len(owners))
        self.flow = _cut.flow(network, cuts, example, self.ranks.device)
        mine = [index for index, owner in enumerate(owners) if owner == self.ranks.rank]
        self.stages = {index: _cut.Stage.of(network, cuts[index]).to(self.ranks.device) for index in mine}
        # Several stages of a process are not adjacent: their common list only serves names, modes and parameters.
        layers = OrderedDict(layer for stage in self.stages.values() for layer in stage.named_children())
        self.model = self.stages[mine[0]] if len(mine) == 1 else nn.Sequential(layers)
        if self.scaler:  # the scaler creates its scale at first use, and most ranks never see a loss
            self.scaler.scale(torch.zeros((), device=self.ranks.device))

    def example(self, micro_batches: int) -> torch.Tensor:
        """A micro-batch's inputs on the meta device. Reads `replica`.

        Raises UserError where a replica's samples cannot be divided into equal micro-batches.
        """
        samples = self.global_batch_size // self.replica.count
        if samples % micro_batches:
            raise UserError(
                f"micro_batches: {micro_batches} is not allowed with {samples} samples for each replica; "
                f"allowed: a divisor of {samples}"
            )
        return self.task.example(samples // micro_batches)

    def cut(self, network: Network, example: torch.Tensor, count: int) -> list[list[str]]:
        """The names of each stage's layers. Rank 0 measures the layers once, so that all jobs of a run cut alike.

        Raises UserError where the user names layers at which the network cannot be cut.
        """
        if firsts := self.cut_before.replace(",", " ").split():
            return _cut.cut_before(firsts, list(dict(network.named_children())), _cut.trainable(network))
        if "layer_seconds" not in self.measured:
            seconds = None
            if self.ranks.rank == 0:
                inputs = torch.zeros(example.shape, dtype=example.dtype, device=self.ranks.device)
                seconds = _cut.layer_seconds(network, inputs)
            self.measured["layer_seconds"] = self.ranks.gather(seconds)[0]
        return _cut.cut(self.measured["layer_seconds"], count, _cut.trainable(network))

    @property
    def no_loss(self) -> torch.Tensor:
        """The loss of a process without a loss: NaN, so that nobody mistakes it for a real one."""
        return torch.full((), torch.nan, device=self.ranks.device)

    def send(self, tensor: torch.Tensor, stage: int) -> None:
        """Send a contiguous tensor to the rank that owns a stage."""
        dist.send(tensor.detach(), self.owners[stage], group=self.group)

    def receive(self, like: torch.Tensor, stage: int, count: int) -> torch.Tensor:
        """Receive a tensor of `count` samples from the rank that owns a stage. `like` gives its shape and type."""
        tensor = torch.empty(count, *like.shape[1:], dtype=like.dtype, device=self.ranks.device)
        dist.recv(tensor, self.owners[stage], group=self.group)
        return tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute all stages without gradients, one micro-batch after the other.

        The owner of the last stage returns the outputs; other processes return what their stages computed.
        Every process sends and receives in the same order of micro-batches and stages, so that there is no deadlock.
        """
        return torch.cat([self._walk(part) for part in inputs.chunk(self.micro_batches)])

    def _walk(self, passing: torch.Tensor) -> torch.Tensor:
        """Compute this process's stages for a micro-batch; receive from and send to the neighbours in between."""
        count = len(passing)
        for index, stage in self.stages.items():
            if index > 0 and index - 1 not in self.stages:
                passing = self.receive(self.flow[index], index - 1, count)
            passing = stage(passing)
            if index + 1 < len(self.owners) and index + 1 not in self.stages:
                self.send(passing, index + 1)
        return passing
