"""The base class of strategies that split the model: the cut, this process's stages, and the pass through them."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn

from relay.process.devices import generators_kept, synchronise
from relay.strategies import _cut
from relay.strategies._boundary import Boundary
from relay.strategies._record import Record
from relay.strategies._stage import Plan, Stage, merged
from relay.strategies.base import Replica, Strategy
from relay.task import batches
from relay.task.batches import Batch
from relay.task.calls import copied, on_device, tensors_in

REPETITIONS = 5  # of a call that is measured


class Staged(Strategy):
    """A model whose calls are split over processes. A subclass decides which rank owns which stage, and does a step.

    Every rank of a replica has the replica's batch, so that inputs and targets are not sent.
    `cut_before`, an option of these strategies, names the first module of each stage but the first one, in the order in
    which the model calls them. Where it names none, the model is cut by what its calls cost.
    `stages` are this process's stages, by index. `owners` has the rank of each stage.
    """

    plan: Plan
    stages: dict[int, Stage]
    owners: Sequence[int]
    micro_batches: int
    losses: list[torch.Tensor]  # of this step's micro-batches, where the last stage is
    group: dist.ProcessGroup | None = None  # the processes that hold one replica together; None for all processes

    def place(
        self, owners: Sequence[int], cut_before: str, micro_batches: int = 1, replica: int = 0, replicas: int = 1
    ) -> None:
        """Cut the model into one stage for each owner, keep this process's stages, and make their optimiser.

        `replica` is the number of this one among the `replicas`. Sets all members above.
        """
        self.owners, self.micro_batches, self.losses = owners, micro_batches, []
        self.replica = Replica(replica, replicas, reports=owners[-1] == self.ranks.rank)
        self.plan = self.planned(len(owners), cut_before)
        mine = [index for index, owner in enumerate(owners) if owner == self.ranks.rank]
        self.stages = {index: Stage(self.plan, index, self.ranks.device) for index in mine}
        held = list(self.stages.values())
        self.plan.release(held)
        for stage in held:
            self.wrap(stage)  # before the whole takes over its parameters, in whose place others may come
        self.model: nn.Module = held[0] if len(held) == 1 else merged(held)
        if len(owners) - 1 in self.stages:
            self.stages[len(owners) - 1].relay_ending = self.ending
        if self.scaler:  # the scaler creates its scale at first use, and most ranks never see a loss
            self.scaler.scale(torch.zeros((), device=self.ranks.device))
        self.make_optimizer()

    def wrap(self, stage: Stage) -> None:
        """Make a stage average its gradients with the same stage of the other replicas; here there are none."""

    def planned(self, count: int, cut_before: str) -> Plan:
        """The model cut into `count` stages. Reads `replica`.

        Rank 0 measures the calls once, so that all jobs of a run cut alike. Raises UserError where the model cannot be
        cut so.
        """
        model, device = self.task.model(), self.ranks.device
        samples = self.global_batch_size // self.replica.count // self.micro_batches
        plan = Plan(self.task, model, device, self.task.example(samples))
        if names := cut_before.replace(",", " ").split():
            plan.cut(_cut.cut_before(plan.calls, names))
            return plan
        if "call_seconds" not in self.measured:
            first = self.ranks.rank == 0
            seconds = call_seconds(plan.calls, model, device, self.task.autocast) if first else None
            self.measured["call_seconds"] = self.ranks.gather(seconds)[0]
        seconds = self.measured["call_seconds"]
        plan.cut(_cut.balanced(plan.calls, [seconds[node.name] for node in plan.calls.nodes], count))
        return plan

    def ending(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """What the last stage makes of outputs in training: their loss, by itself in a tensor, scaled for fp16."""
        loss = self.task.loss(outputs, batch)
        self.losses.append(loss.detach())
        return torch.stack([self.scaler.scale(loss) if self.scaler else loss]).to(self.task.dtype)

    @property
    def step_loss(self) -> torch.Tensor:
        """The mean loss of the step; a process without one gets NaN, so that nobody mistakes it for a real one."""
        mean = torch.stack(self.losses).mean() if self.losses else torch.full((), torch.nan, device=self.ranks.device)
        self.losses.clear()
        return mean

    def send(self, tensors: Sequence[torch.Tensor], stage: int) -> None:
        """Send contiguous tensors to the rank that owns a stage."""
        for tensor in tensors:
            dist.send(tensor.detach(), self.owners[stage], group=self.group)

    def receive(self, boundary: Boundary, stage: int) -> list[torch.Tensor]:
        """Receive from the rank that owns a stage what crosses a boundary."""
        tensors = boundary.sent(self.ranks.device)
        for tensor in tensors:
            dist.recv(tensor, self.owners[stage], group=self.group)
        return tensors

    def over_stages(self, sum_of_mine: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(sum_of_mine, group=self.group)
        return sum_of_mine

    def forward(self, batch: Batch) -> Any:
        """Outputs of this replica's slice, in the process that reports; other processes return None. Collective.

        Every process sends and receives in the same order of micro-batches and stages, so that there is no deadlock.
        """
        pieces = 1 if batches.count(batch) % self.micro_batches else self.micro_batches
        parts = batches.chunks(batch, pieces)
        outputs = [self._walk(part) for part in parts]
        if not self.replica.reports:
            return None
        along = self.task.spec.card.along(next(iter(self.stages.values())).training)
        return batches.joined(outputs, [batches.count(part) for part in parts], along)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        for stage in self.stages.values():
            stage.eval()
        outputs = self.forward(batch)
        for stage in self.stages.values():
            stage.train()
        return outputs

    def _walk(self, batch: Batch) -> Any:
        """Compute this process's stages for a micro-batch; receive from and send to the neighbours in between."""
        values: Any = ()
        for index, stage in self.stages.items():
            stage.relay_batch = batch
            if index > 0 and index - 1 not in self.stages:
                values = self.receive(stage.relay_program().enters, index - 1)
            values = stage(*values)
            if index + 1 < len(self.owners) and index + 1 not in self.stages:
                self.send(values, index + 1)
        return values


def call_seconds(
    calls: _cut.Calls, model: nn.Module, device: torch.device, autocast: torch.dtype | None
) -> dict[str, float]:
    """Seconds that each call takes for a forward and a backward pass, by the names of its node, on the device.

    The result is the least of a few repetitions, because disturbances only add time. Modules are copied, one at a time,
    so that neither they nor the random generators change.
    """
    with generators_kept(device):
        return {node.name: _seconds(node, calls.record, model, device, autocast) for node in calls.nodes}


def _seconds(
    node: fx.Node, record: Record, model: nn.Module, device: torch.device, autocast: torch.dtype | None
) -> float:
    def submodule(name: str) -> nn.Module:
        return on_device(copied(model.get_submodule(name)), device)

    def value_of(each: fx.Node) -> Any:
        if like := each.meta.get("like"):
            return like.empty(device).zero_().requires_grad_(like.requires_grad)
        name = str(each.target)
        return record.constants[name] if name in record.constants else submodule(name)

    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    function: Any = node.target
    if node.op == "call_module":
        function = submodule(str(node.target))
    times = []
    for _ in range(1 + REPETITIONS):
        given = fx.node.map_aggregate(args, lambda each: each.view_as(each) if isinstance(each, torch.Tensor) else each)
        if node.meta.get("overwrites"):  # a parameter cannot be changed in place
            given = fx.node.map_aggregate(args, lambda e: e.clone() if isinstance(e, torch.Tensor) else e)
        started = _now(device)
        with torch.autocast(device.type, autocast) if autocast else nullcontext():
            outputs = function(*given, **kwargs)
        if graded := [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]:
            torch.autograd.backward(graded, [torch.ones_like(leaf) for leaf in graded])
        times.append(_now(device) - started)
    return min(times[1:])


def _now(device: torch.device) -> float:
    """The time in seconds, after the device has finished its queued work."""
    synchronise(device)
    return time.perf_counter()
