"""The strategy NAME: data parallelism by hand. The processes average their gradients after the backward pass."""

import torch
import torch.distributed as dist

from relay.strategies.base import Requirements, Strategy


class CLASS(Strategy):
    """Every process holds the whole model and a slice of each batch."""

    # A literal: it is read from this text. It says what the strategy needs, and what it divides.
    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        """Set `self.model`, `self.optimizer` and `self.replica`. A wrapper goes into `self.module`."""
        self.build_whole()  # the whole model on this process's device, its optimiser, its slice of the batch

    def backward(self, loss: torch.Tensor) -> None:
        """The place of `loss.backward()`."""
        super().backward(loss)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)  # the sum over all processes
                parameter.grad /= self.ranks.world_size
