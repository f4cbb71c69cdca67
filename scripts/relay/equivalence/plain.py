"""A plain training in one process: what every strategy has to compute. It uses no code of the strategies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from relay.task.data import Batch
from relay.task.network import Network, StatisticsKept
from relay.task.task import FIRST_SCALE, Task


@dataclass
class Plain:
    """A model, its optimiser and, in fp16, the loss's scale, trained one step after the other.

    `statistics` are the model's buffers (BatchNorm's statistics), one set for each replica. They stay empty where one
    replica computes everything, because the model's own buffers are then enough.
    With `copies`, copies of the model compute the parts of a slice, and only the first one's statistics stay.
    """

    task: Task
    model: Network
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    statistics: list[dict[str, torch.Tensor]] = field(default_factory=list)
    copies: bool = False

    @classmethod
    def of(cls, task: Task, device: torch.device, replicas: int = 1) -> Plain:
        """The training before its first step. `replicas`: how many sets of statistics it has."""
        model = task.model().to(device)
        scaler = torch.amp.GradScaler(device.type, init_scale=FIRST_SCALE, enabled=task.precision == "fp16")
        plain = cls(task, model, task.optimizer(model.parameters()), scaler)
        if replicas > 1:
            plain.statistics = [{name: b.clone() for name, b in model.named_buffers()} for _ in range(replicas)]
        return plain

    def step(self, slices: Sequence[Sequence[Batch]], learning_rate: float) -> torch.Tensor:
        """Train one step; the batch's mean loss, a scalar in float64 on the CPU.

        `slices` are the batch, cut into a slice for each replica, and each slice into parts, such as micro-batches.
        Parts are computed one after the other, and their gradients are summed: the same training as with the whole
        batch at once, but for rounding and the statistics.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        samples = sum(len(targets) for parts in slices for _, targets in parts)
        total = torch.zeros((), dtype=torch.float64)
        for replica, parts in enumerate(slices):
            self.use_statistics(replica)
            for part, (inputs, targets) in enumerate(parts):
                with StatisticsKept(self.model) if self.copies and part else nullcontext():
                    loss = self.task.loss(self.model(inputs), targets) * (len(targets) / samples)
                    self.scaler.scale(loss).backward()
                total += loss.detach().double().cpu()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return total

    @torch.no_grad()
    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs in evaluation mode; with several replicas, by the first one's statistics."""
        self.use_statistics(0)
        self.model.eval()
        outputs: torch.Tensor = self.model(inputs)
        self.model.train()
        return outputs

    def use_statistics(self, replica: int) -> None:
        """Let the model compute with a replica's statistics, which it updates in place."""
        if not self.statistics:
            return
        own = self.statistics[replica]
        for path, module in self.model.named_modules():
            for name in module._buffers:
                module._buffers[name] = own[f"{path}.{name}" if path else name]

    @property
    def footprint(self) -> dict[str, int]:
        """Bytes of parameters, gradients and optimiser state between steps."""
        parameters = list(self.model.parameters())
        state = [t for held in self.optimizer.state.values() for t in held.values() if torch.is_tensor(t) and t.dim()]
        return {
            "parameters": sum(p.nbytes for p in parameters),
            "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None),
            "optimizer": sum(t.nbytes for t in state),
        }
