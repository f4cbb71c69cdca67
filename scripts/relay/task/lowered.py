"""In which precision a task computes: that of its run, or a lower one to which its own code turns."""

from __future__ import annotations

import torch

from relay.process.generators import drawn_from
from relay.task import batches
from relay.task.bound import AUTOCAST, BoundTask
from relay.task.calls import tensors_in
from relay.task.modes import Operations

SAMPLES = 8  # of the batch that is looked at


def computed_in(task: BoundTask, device: torch.device) -> str:
    """The precision whose rounding a training has: the task's, or the coarsest that its model or loss asks for.

    A forward pass that enters autocast by itself rounds as a run in bf16 does, whatever the run's precision is.
    """
    task, types = task.apart(), set[torch.dtype]()
    task.compiled = False  # compiled code shows no operations
    try:
        with drawn_from(0):
            model, batch = task.model().to(device), batches.moved(task.example(SAMPLES), device)
            seen = Operations(lambda *call: types.update(leaf.dtype for leaf in tensors_in(call[-1])))
            with task.computing(), seen:
                task.loss(task.outputs(model, batch), batch)
    except Exception:  # whatever a model or a loss raises for few samples
        return task.precision
    return next((name for name, low in AUTOCAST.items() if low in types), task.precision)
