"""Each process has one or two pipeline stages, and different processes compute different micro-batches at a time."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from relay.spec.requirements import SCHEDULES
from relay.strategies._stage import Stage, shapes
from relay.strategies._stages import Staged
from relay.strategies.base import Requirements
from relay.task import batches
from relay.task.batches import Batch


class Scheduled(PipelineStage):
    """A stage as torch's schedules see it; it is told which micro-batch they compute."""

    parts: Sequence[Batch]
    computed: Stage

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Compute a micro-batch, whose inputs the stage has for itself."""
        self.computed.relay_batch = self.parts[fwd_chunk_id]
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """What torch 2.9 to 2.11 sends to each neighbour at first; not to one in this process, which gloo cannot do."""
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]


class Pipeline(Staged):
    """One pipeline over all processes. The schedule decides whether each has one stage or two."""

    requirements = Requirements(
        least_torch="2.8",  # the schedules of 2.5 do not wait for all of gloo's transfers, and sum gradients
        least_devices=2,
        group="all",
        needs=("layers", "cuts", "groups", "all_parameters"),
        divides=("parameters", "gradients", "optimizer"),
        options={"schedule": "1f1b", "micro_batches": 4, "cut_before": ""},
        pipelined=True,
    )

    def build(self, schedule: str, micro_batches: int, cut_before: str) -> None:
        self.lay(range(self.ranks.world_size), schedule, micro_batches, cut_before)

    def lay(self, members: Sequence[int], schedule: str, micro_batches: int, cut_before: str, *replica: int) -> None:
        """Build the pipeline of one replica over the ranks `members`, of which this process is one.

        `replica` is its number, and how many there are.
        """
        kind, owners = SCHEDULES[schedule], list(members)
        if kind.stages == 2:
            owners += reversed(members) if kind.v_shaped else members
        self.place(owners, cut_before, micro_batches, *replica)
        self.chosen = get_schedule_class(kind.name)
        self.built: dict[Any, tuple[list[Scheduled], Callable[..., Any]]] = {}
        self.scheduled(self.plan.example)

    def scheduled(self, part: Batch) -> tuple[list[Scheduled], Callable[..., Any]]:
        """The stages and the schedule's step for micro-batches of these shapes."""
        if (key := shapes(part)) not in self.built:
            stages = [self.stage(index, stage, part) for index, stage in self.stages.items()]
            held = stages[0] if issubclass(self.chosen, PipelineScheduleSingle) else stages
            # The last stage returns the loss itself.
            schedule = self.chosen(held, self.micro_batches, loss_fn=lambda loss, _: loss.sum())
            # Outputs need not be kept for the end of the step. Old versions of torch keep them, and know no argument.
            keeps = {"return_outputs": False} if "return_outputs" in signature(schedule.step).parameters else {}
            self.built[key] = stages, partial(schedule.step, **keeps)
        return self.built[key]

    def stage(self, index: int, module: nn.Module, part: Batch) -> Scheduled:
        """The stage for torch's schedules, with the shapes of what it receives and sends for such micro-batches."""
        # Without the shapes, torch would compute a micro-batch to find them, and BatchNorm and the loss would count it.
        stage, last = self.stages[index], index == len(self.owners) - 1
        stage.relay_batch = part
        program = stage.relay_program()
        loss = [torch.empty(1, dtype=self.task.dtype, device="meta")]
        enters, leaves = (
            tuple(each.requires_grad_() for each in tensors)
            for tensors in (program.enters.sent("meta"), loss if last else program.leaves.sent("meta"))
        )
        torch_stage = Scheduled(
            module, index, len(self.owners), self.ranks.device, input_args=enters, output_args=leaves, group=self.group
        )
        torch_stage.computed = stage
        return torch_stage

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        parts = batches.chunks(batch, self.micro_batches)
        stages, step = self.scheduled(parts[0])
        for stage in stages:
            stage.parts = parts
        # Micro-batches are equal, so that the schedule's mean over micro-batches is the mean over the slice.
        targets = torch.zeros(self.micro_batches) if self.replica.reports else None  # torch wants some with a loss
        step(target=targets)
        self.update()
        return self.step_loss
