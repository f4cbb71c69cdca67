"""Each process has one or two pipeline stages, and different processes compute different micro-batches at a time."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from relay.base.errors import UserError
from relay.spec.schedules import SCHEDULES
from relay.strategies._cut import Stage
from relay.strategies._stages import Staged
from relay.strategies.base import Replica, Requirements


class Pipeline(Staged):
    """One pipeline over all processes. The schedule decides whether each has one stage or two."""

    requirements = Requirements(
        least_torch="2.8",  # the schedules of 2.5 do not wait for all of gloo's transfers, and sum gradients
        least_devices=2,
        group="all",
        needs=("layers", "cuts"),
        divides=("parameters", "gradients", "optimizer"),
        options={"schedule": "1f1b", "micro_batches": 4, "cut_before": ""},
        pipelined=True,
    )

    def build(self, schedule: str, micro_batches: int, cut_before: str) -> None:
        self.cut_before = cut_before
        self.lay(range(self.ranks.world_size), schedule, micro_batches, replica=0, replicas=1)

    def lay(self, members: Sequence[int], schedule: str, micro_batches: int, replica: int, replicas: int) -> None:
        """Build the pipeline of one replica over the ranks `members`, of which this process is one.

        Raises UserError for a schedule that does not fit; the planner skips such settings before.
        """
        known = SCHEDULES[schedule]
        for problem in known.problems(len(members), micro_batches, self.task.compiled, self.task.channels_last):
            raise UserError(f"schedule: '{schedule}' {problem}")
        owners = list(members)
        if known.stages == 2:
            owners += reversed(members) if known.v_shaped else members
        self.replica = Replica(replica, replicas, reports=owners[-1] == self.ranks.rank)
        self.place(owners, micro_batches)
        for stage in self.stages.values():
            self.wrap(stage)
        self.make_optimizer()
        self.losses: list[torch.Tensor] = []
        stages = [self.stage(index, stage) for index, stage in self.stages.items()]
        chosen = get_schedule_class(known.name)
        held = stages[0] if issubclass(chosen, PipelineScheduleSingle) else stages
        self.schedule = chosen(held, micro_batches, loss_fn=self._loss)
        # Outputs need not be kept for the end of the step. Old versions of torch keep them, and know no such argument.
        takes = signature(self.schedule.step).parameters
        self.keeps = {"return_outputs": False} if "return_outputs" in takes else {}

    def wrap(self, stage: Stage) -> None:
        """Make a stage average its gradients with the same stage of the other replicas; here there are none."""

    def stage(self, index: int, module: torch.nn.Module) -> PipelineStage:
        """The stage for torch's schedules, with the shapes of its inputs and outputs."""
        # Without the shapes, torch would compute a micro-batch to find them, and BatchNorm and the loss would count it.
        enters, leaves = self.flow[index : index + 2]
        count, device = len(self.owners), self.ranks.device
        return PipelineStage(module, index, count, device, input_args=enters, output_args=leaves, group=self.group)

    def _loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """A micro-batch's loss, scaled for fp16. The unscaled loss is kept for the loss of the step."""
        loss = self.task.loss(outputs, targets)
        self.losses.append(loss.detach())
        return self.scaler.scale(loss) if self.scaler else loss

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.losses.clear()
        # Micro-batches are equal, so that the schedule's mean over micro-batches is the mean over the slice.
        entering = [inputs] if 0 in self.stages else []
        self.schedule.step(*entering, target=targets if self.replica.reports else None, **self.keeps)
        self.update()
        return torch.stack(self.losses).mean() if self.losses else self.no_loss
