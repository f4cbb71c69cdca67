"""The search for the deepest network of a task that fits: a probe over the task's option `depth`.

It goes up from below. Two small depths show what a block takes. The next depth is half of what they, or the formula,
let expect. Each further one should just fill the budget by what was measured so far.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from relay.probe.job import Search, of_batch
from relay.probe.tries import Tries
from relay.spec import strategy_files
from relay.spec.labels import counted
from relay.spec.run import Probe

# Of each parameter, numbers that the optimizer keeps.
KEPT = {"adam": 2, "adamw": 2, "adadelta": 2}
HELD = ("parameters", "gradients", "optimizer")


def state_bytes(run: Probe) -> float:
    """Bytes for each parameter of the model that a rank holds between steps, by the formula.

    All numbers are float32: a parameter, its gradient, and the optimizer's state. The ranks that divide a part hold
    equal shares of it. What a strategy keeps besides (copies, buckets, buffers) and activations are left out.
    """
    kept = KEPT.get(run.task.optimizer, int(bool(run.task.optimizer_options.get("momentum"))))
    needs = strategy_files.read(Path(run.strategy.file))
    processes, options = run.shape.world_size, run.strategy.options
    ranks = needs.group_size(processes, options) if needs.pipelined else processes // int(options.get("replicas", 1))
    numbers = zip(HELD, (1, 1, kept), strict=True)
    return float(sum(4 * count / (ranks if part in run.strategy.divides else 1) for part, count in numbers))


@dataclass
class DepthSearch(Search):
    """A search over depths, which looks at the peak, the parameters and the budget that were measured."""

    state_bytes: float = 0.0
    key: ClassVar[str] = "depth"
    words: ClassVar[str] = "blocks"

    @classmethod
    def of(cls, run: Probe, tries: Tries) -> Self:
        return cls(1, run.limits.first, run.limits.most, tries.measured, state_bytes=state_bytes(run))

    @staticmethod
    def of_size(run: Probe, size: int) -> Probe:
        """The run for a few steps of a network with so many blocks."""
        task = replace(run.task, options={**run.task.options, "depth": size})
        return of_batch(replace(run, task=task), run.batch.global_batch_size // run.shape.devices)

    def _next(self) -> int | None:
        if self.too_large is not None or self.largest == self.most or len(self.sizes) < 2:
            return super()._next()
        reached = self._filling()
        if len(self.sizes) == 2:
            reached = max(min(reached, self.largest + 1), min(reached, self.predicted()) // 2)
        reached = min(reached, self.most)
        return reached if reached > self.largest else None

    def _filling(self) -> int:
        """The depth that should just fill the budget, by the first depth and the largest so far."""
        first, last = self.measured[self.first], self.measured[self.largest]
        each = (last["peak_memory_bytes"] - first["peak_memory_bytes"]) / (self.largest - self.first)
        left = last["budget_bytes"] - last["peak_memory_bytes"]
        return self.largest + int(left / each) if each > 0 else 2 * self.largest

    def predicted(self) -> int:
        """The depth that fits by the formula, beside what the process holds without a model."""
        first, second = (self.measured[size] for size in self.sizes[:2])
        layer = (second["parameters"] - first["parameters"]) / (self.sizes[1] - self.sizes[0])
        process = first["peak_memory_bytes"] - self.state_bytes * first["parameters"]
        fitting = (first["budget_bytes"] - process) / self.state_bytes - first["parameters"]
        return self.first + int(fitting / layer)

    def parameters(self, depth: int) -> int:
        """Of the network of that depth."""
        first, second = (self.measured[size]["parameters"] for size in self.sizes[:2])
        return int(first + (depth - self.sizes[0]) * (second - first) / (self.sizes[1] - self.sizes[0]))

    def fewest(self, size: int) -> str:
        return f"{counted(size, 'block')}, the fewest that it tried,"

    def record(self, run: Probe, tries: Tries) -> dict[str, Any]:
        """With what the formula says, where the first two depths were measured."""
        record = super().record(run, tries) | {"task": run.task.name, "state_bytes": self.state_bytes}
        if sum("parameters" in self.measured.get(depth, {}) for depth in self.sizes[:2]) == 2:
            predicted = self.predicted()
            record |= {"parameters": self.measured[self.largest]["parameters"], "predicted_depth": predicted}
            record["predicted_parameters"] = self.parameters(predicted)
        return record
