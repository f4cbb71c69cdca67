"""Each process has one stage of the model. The batch passes through the stages, so that one process works at a time.

This is document 002's model parallelism, with a process for each device. Pipelines are compared with it.
"""

import torch

from relay.strategies._stages import Staged
from relay.strategies.base import Requirements
from relay.task.batches import Batch


class ModelParallel(Staged):
    """One stage for each process, in the order of ranks, all of nearly equal cost. No work overlaps."""

    requirements = Requirements(
        least_devices=2,
        group="all",
        needs=("layers", "cuts", "groups", "all_parameters"),
        divides=("parameters", "gradients", "optimizer"),
        options={"cut_before": ""},
    )

    def build(self, cut_before: str) -> None:
        self.place(range(self.ranks.world_size), cut_before)

    def train_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        ((index, stage),) = self.stages.items()
        stage.relay_batch = batch
        program = stage.relay_program()
        received = self.receive(program.enters, index - 1) if index else []
        for tensor in received:
            tensor.requires_grad_()
        outputs = stage(*received)
        if self.replica.reports:
            outputs.sum().backward()
        else:
            self.send(outputs, index + 1)
            torch.autograd.backward(outputs, self.receive(program.leaves, index + 1))
        self.send([tensor.grad for tensor in received if tensor.grad is not None], index - 1)
        self.update()
        return self.step_loss
